"""The SDK of Amazon, loaded only where it is used; its errors leave here as ours.

Its own retries are off: the workflows retry, and know what may have happened.
"""

import importlib
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from forgeyard.errors import Ambiguous, Denied, InvalidRequest, InvalidSpec, Unavailable
from providers import aws_errors

EXTRA: Final = "forgeyard[aws]"
CONNECT_WITHIN_S: Final = 5
ANSWER_WITHIN_S: Final = 30
PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """Where to look; who we are is what the SDK finds: a profile, a role, its environment."""

    regions: tuple[str, ...]
    """All in which there may be machines of ours."""
    queue_url: str = ""
    """Of the queue that EventBridge puts warnings into, in the first region."""
    profile: str = ""
    endpoint_url: str = ""
    """Instead of Amazon's own."""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    installation: str = ""
    """Whose tag a rehearsal carries, for permissions may hang on it."""
    page_size: int = PAGE


class Client(Protocol):
    """The calls that are made, as the SDK makes them."""

    def describe_instances(self, **arguments: object) -> object:
        """Look at machines."""
        ...

    def run_instances(self, **arguments: object) -> Mapping[str, object]:
        """Make one."""
        ...

    def terminate_instances(self, **arguments: object) -> object:
        """End some."""
        ...

    def cancel_spot_instance_requests(self, **arguments: object) -> object:
        """Want no more of them."""
        ...

    def describe_images(self, **arguments: object) -> Mapping[str, object]:
        """Look at images."""
        ...

    def describe_subnets(self, **arguments: object) -> Mapping[str, object]:
        """Look at networks."""
        ...

    def describe_spot_price_history(self, **arguments: object) -> object:
        """Look at the spot market."""
        ...

    def get_products(self, **arguments: object) -> object:
        """Look at the price list."""
        ...

    def get_caller_identity(self, **arguments: object) -> object:
        """Ask who we are."""
        ...

    def receive_message(self, **arguments: object) -> Mapping[str, object]:
        """Fetch messages."""
        ...

    def delete_message_batch(self, **arguments: object) -> object:
        """Forget messages."""
        ...


class Sdk:
    """The SDK, if it is installed, and one client for each service and region.

    Raises:
        InvalidRequest: it is not installed.
    """

    def __init__(self, settings: AwsSettings) -> None:
        try:
            session = importlib.import_module("boto3.session")
            self._config = importlib.import_module("botocore.config")
            self._errors = importlib.import_module("botocore.exceptions")
        except ImportError as error:
            raise InvalidRequest(
                f"machines of Amazon cannot be had: {error.name} is not installed",
                field="providers",
                value="aws",
                allowed=f"pip install '{EXTRA}'",
            ) from error
        self._settings = settings
        self._session = session.Session(
            profile_name=settings.profile or None,
            aws_access_key_id=settings.access_key or None,
            aws_secret_access_key=settings.secret_key or None,
        )
        self._clients: dict[tuple[str, str], Client] = {}
        self._lock = threading.Lock()

    def client(self, service: str, region: str) -> Client:
        """Get the client of a service in a region."""
        with self._lock:
            found = self._clients.get((service, region))
            if found is None:
                found = self._clients[service, region] = self._made(service, region)
            return found

    def lasting_key(self) -> str:
        """Name the key that requests are signed with, unless it is one that soon ends by itself."""
        found = self._session.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
        return "" if frozen is None or frozen.token else str(frozen.access_key or "")

    def _made(self, service: str, region: str) -> Client:
        made: Client = self._session.client(
            service,
            region_name=region,
            endpoint_url=self._settings.endpoint_url or None,
            config=self._config.Config(
                connect_timeout=CONNECT_WITHIN_S,
                read_timeout=ANSWER_WITHIN_S,
                retries={"mode": "standard", "total_max_attempts": 1},
                parameter_validation=True,
            ),
        )
        return made

    @contextmanager
    def asking(self, what: str, *, writes: bool = False) -> Generator[None]:
        """Turn the SDK's errors into ours; `writes`: what failed may have happened.

        Raises:
            ForgeyardError: by the code, or by how the connection failed.
        """
        errors = self._errors
        try:
            yield
        except errors.ClientError as error:
            refusal = aws_errors.read(error.response)
            raise aws_errors.ours(refusal, what=what, writes=writes) from error
        except errors.ParamValidationError as error:
            raise InvalidSpec(f"{what}: {error}", field="offering") from error
        except (errors.NoCredentialsError, errors.PartialCredentialsError) as error:
            raise Denied(f"{what}: {error}") from error
        except (
            *(errors.EndpointConnectionError, errors.ConnectTimeoutError, errors.SSLError),
            *(errors.ProxyConnectionError, errors.NoRegionError),
        ) as error:
            raise Unavailable(f"{what}: {error}") from error
        except (errors.BotoCoreError, errors.HTTPClientError, OSError) as error:
            lost = f"{what}: {type(error).__name__}"
            raise (Ambiguous(lost) if writes else Unavailable(lost)) from error
