"""The configuration tree: read once by a composition root, handed on by group.

Sources, strongest first: arguments, `FORGEYARD_*` environment variables (`__` between group and
key), the TOML file. An unknown key is an error, in each of them.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from forgeyard.errors import InvalidRequest
from forgeyard.machine_settings import AgentConfig, FleetsConfig, Group
from forgeyard.model.equipment import (
    Word,
)
from forgeyard.model.location import Location
from forgeyard.model.permission import Role, check_grant
from forgeyard.model.units import GIB, MIB
from forgeyard.trust.destinations import checked_issuer


class Profile(StrEnum):
    """What a system is for."""

    DEVELOPMENT = "development"
    PRODUCTION = "production"


class TemporalConfig(Group):
    """Where Temporal is, how it is sure of us and we of it, and what it may read."""

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    ui_url: str = "http://127.0.0.1:8233"
    """Where its Web UI is; pages from there may ask the API to decode what Temporal keeps."""
    tls: bool = False
    """Speak TLS; any of the settings below up to the API key says so as well."""
    ca_file: str = ""
    """PEM of who signs the server's certificate; empty means whom this machine trusts."""
    server_name: str = ""
    """The name in the server's certificate, if it is another one than the address."""
    cert_file: str = ""
    """PEM of the certificate that this process shows, and those above it."""
    key_file: str = ""
    """PEM of that certificate's key; 0600."""
    api_key_file: str = ""
    """A 0600 file with the key that is sent with every call, over TLS only."""
    codec_keys_file: str = ""
    """A 0600 file of keys, from `forgeyard codec new-key`, that seal what Temporal keeps."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together")
        return self


class StoreConfig(Group):
    """Where truth lives."""

    url: str = Field(default="", repr=False)
    """SQLAlchemy URL; empty means `DATA_DIR/forgeyard.db`."""
    pool: int = Field(default=8, ge=1, le=200)
    busy_timeout_ms: int = Field(default=10_000, ge=0)
    statement_timeout_ms: int = Field(default=5_000, ge=0)
    lock_timeout_ms: int = Field(default=4_000, ge=0)
    idle_timeout_ms: int = Field(default=10_000, ge=0)
    """A process that freezes inside a transaction holds its locks no longer than so."""
    site: Word = ""
    """The rack, room or zone where sources, outputs and caches lie, in the words of the agents."""
    region: Word = ""

    def location(self) -> Location:
        """Tell where it is."""
        return Location(site=self.site or None, region=self.region or None)


class WorkerConfig(Group):
    """Which build of the workers this is, where Temporal is to tell them apart."""

    deployment: str = Field(default="forgeyard", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    build: str = Field(default="", pattern=r"^[A-Za-z0-9._+-]{0,64}$")
    """Empty means that workers are all alike: each takes whatever there is to do."""


class ApiConfig(Group):
    """Two listeners: people and agents."""

    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65_535)
    agent_host: str = "127.0.0.1"
    agent_port: int = Field(default=8701, ge=0, le=65_535)
    agent_identity: Literal["token", "certificate", "front"] = "token"
    """How agents prove who they are. By the token of the data directory, which makes them admin of
    everything, only from this host; from elsewhere by certificates of the authority here. With
    `front` a TLS front on this host demands these certificates and passes them on."""
    front_secret_file: str = ""
    """A 0600 file of 32 characters or more, which the front sends along with each certificate."""
    authority: str = ""
    """The folder of the authority; empty means `DATA_DIR/ca`."""
    certificate_s: int = Field(default=24 * 3600, ge=10, le=90 * 24 * 3600)
    """How long a runner's certificate is good; it is renewed after half of that."""
    aws_certificates: Mapping[str, str] = Field(default={}, max_length=200)
    """For each region of AWS, PEM of what it signs documents of its machines with (RSA-2048)."""
    agent_versions: str = Field(default="", max_length=100)
    """Which versions of the agent are admitted, such as `>=0.2,<1`; empty for every one."""
    poll_ms: int = Field(default=100, ge=10)
    long_poll_s: float = Field(default=20.0, gt=0)
    at_once: int = Field(default=256, ge=1)
    """How many requests each listener answers side by side, long polls and transfers aside."""
    leave_s: float = Field(default=0.0, ge=0, le=300)
    """Asked to end, it is not ready for so long but still serves, until a balancer has noticed."""
    grace_s: float = Field(default=30.0, gt=0, le=3_600)
    """How long requests under way may then take to finish."""


class OidcConfig(Group):
    """Whose ID tokens sign people and programs on; off unless an issuer is named."""

    issuer: str = ""
    """As its tokens and its discovery document say it; https, or http on this host."""
    client_id: str = ""
    audience: str = ""
    """Whom its tokens have to be for; empty means the client."""
    roles_claim: str = "groups"
    """The claim whose values give roles."""
    roles: Mapping[str, str] = Field(default={}, max_length=1_000)
    """`ROLE`, or `ROLE@TENANT`, for a value; the first one here that somebody has counts."""
    token_s: int = Field(default=8 * 3600, ge=60, le=12 * 3600)
    """How long at most a token of ours is good."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.issuer:
            checked_issuer(self.issuer)
            if not self.client_id:
                raise ValueError("an issuer goes with a client_id")
        for value in self.roles:
            role, tenant = self.grant(value)
            check_grant(role, (), tenant=tenant)
        return self

    def grant(self, value: str) -> tuple[Role, str | None]:
        """Tell which role a value of the claim gives, and inside which tenant."""
        role, _, tenant = self.roles[value].partition("@")
        return Role(role), tenant or None


class LimitsConfig(Group):
    """Bounds on everything that comes from outside, in bytes unless named otherwise."""

    request_body: int = MIB
    source: int = 512 * MIB
    output: int = 1 * GIB
    log_per_attempt: int = 16 * MIB
    jobs_per_run: int = 1_000


class RetentionConfig(Group):
    """How long finished work is kept, in hours, and how much of what is kept for speed."""

    logs_h: int = Field(default=24 * 14, ge=1)
    artifacts_h: int = Field(default=24 * 14, ge=1)
    caches_h: int = Field(default=24 * 14, ge=1)
    """Counts from when a dependency cache was last used."""
    cache_bytes: int = Field(default=20 * GIB, ge=0)
    """All dependency caches together; beyond it the least recently used go."""
    identities_h: int = Field(default=24 * 90, ge=48)
    """Counts from the end of a certificate, and from what happened last to an enrolment."""


class MetricsConfig(Group):
    """Ports that publish metrics to anybody who reaches them; none is open unless it is set.

    With the token, the API's own port answers `/metrics` in any case.
    """

    host: str = "127.0.0.1"
    api_port: int | None = Field(default=None, ge=1, le=65_535)
    worker_port: int | None = Field(default=None, ge=1, le=65_535)
    temporal_port: int | None = Field(default=None, ge=1, le=65_535)
    """What Temporal's SDK counts in the worker process, on a port of its own."""


class TracingConfig(Group):
    """Where spans go; needs the extra `otel`."""

    endpoint: str = ""
    """An OTLP endpoint for traces over HTTP, such as `http://collector:4318/v1/traces`."""
    ratio: float = Field(default=1.0, ge=0, le=1)
    """How many of the traces are kept."""


class Config(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix="FORGEYARD_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    data_dir: Path = Path(".forgeyard")
    partition: str = "default"
    profile: Profile = Profile.DEVELOPMENT
    """In production, what is made for trying out is refused."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    temporal: TemporalConfig = TemporalConfig()
    store: StoreConfig = StoreConfig()
    worker: WorkerConfig = WorkerConfig()
    api: ApiConfig = ApiConfig()
    oidc: OidcConfig = OidcConfig()
    limits: LimitsConfig = LimitsConfig()
    retention: RetentionConfig = RetentionConfig()
    fleets: FleetsConfig = FleetsConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    agent: AgentConfig = AgentConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments beat the environment, which beats the file."""
        file = os.environ.get("FORGEYARD_CONFIG")
        toml = TomlConfigSettingsSource(settings_cls, Path(file)) if file else None
        return (init_settings, env_settings, *((toml,) if toml else ()))

    def database_url(self) -> str:
        """Tell where the store is, filling in the embedded default."""
        return self.store.url or f"sqlite:///{self.data_dir.resolve() / 'forgeyard.db'}"

    def token_path(self) -> Path:
        """Tell where the API token lies."""
        return self.data_dir / "token"

    def authority_dir(self) -> Path:
        """Tell where the authority lies that signs runners."""
        return Path(self.api.authority) if self.api.authority else self.data_dir / "ca"

    def audit_heads(self) -> Path:
        """Tell where the heads of the audit trail are kept."""
        return self.data_dir / "audit-heads.jsonl"

    def fleet_url(self) -> str:
        """Tell new machines where the agent API is."""
        scheme = "http" if self.api.agent_identity == "token" else "https"
        where = f"{scheme}://{self.api.agent_host}:{self.api.agent_port}"
        return self.fleets.agent_url or where

    def blob_dir(self) -> Path:
        """Tell where blobs lie."""
        return self.data_dir / "blobs"


class ClientConfig(BaseSettings):
    """Which system the command line talks to: `FORGEYARD_URL` and `_TOKEN` or `_TOKEN_FILE`.

    Where neither is set, what `forgeyard login` has kept counts.
    """

    model_config = SettingsConfigDict(env_prefix="FORGEYARD_", frozen=True, extra="forbid")

    url: str = ""
    """With commas between, if it has several; empty means the system of the data directory."""
    token: str = Field(default="", repr=False)
    token_file: str = ""
    credentials: Path = Path("~/.config/forgeyard/credentials.json")
    """Where `forgeyard login` keeps tokens."""


def private_places(found: Config) -> tuple[Path, ...]:
    """List what holds secrets of the processes on this host: data directory, settings, token."""
    files = (os.environ.get("FORGEYARD_CONFIG"), load_client().token_file)
    return (found.data_dir.absolute(), *(Path(file).absolute() for file in files if file))


PREFIX = "FORGEYARD_"
OUTSIDE = frozenset({"FORGEYARD_CONFIG", "FORGEYARD_DB_PASSWORD"}) | frozenset(
    f"{PREFIX}{name.upper()}" for name in ClientConfig.model_fields
)
"""Variables that mean something, but not to the tree; the password is `deploy/`'s."""
SEEN_BY_JOBS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("RUN_ID", "RUN_NAME", "JOB_ID", "JOB_NAME", "ATTEMPT", "WORKSPACE", "LEASE_ID"),
        "DEVICES",
    )
)
"""What an agent tells a job, which may itself start Forgeyard."""
FOR_TESTS = "FORGEYARD_TEST_"


def load_client() -> ClientConfig:
    """Read what the environment says about the system to talk to."""
    return ClientConfig()


def load(**overrides: object) -> Config:
    """Read the configuration.

    Raises:
        InvalidRequest: naming the first setting that is unknown, out of range or unreadable.
    """
    _check_names(os.environ)
    _check_file(os.environ.get("FORGEYARD_CONFIG"))
    try:
        return Config.model_validate(overrides)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        # What stands under a misspelt name may be a secret.
        is_unknown = first["type"] == "extra_forbidden"
        raise InvalidRequest(
            f"configuration: {name}: {first['msg']}",
            field=name,
            value=None if is_unknown else first.get("input"),
        ) from error
    except SettingsError as error:
        raise InvalidRequest(f"configuration: {error}", field="environment") from None


def _check_names(names: Iterable[str]) -> None:
    """Refuse a variable of ours that nobody reads: it is most likely a misspelt one."""
    for name in sorted(names):
        upper = name.upper()
        passed_by = upper in OUTSIDE or upper in SEEN_BY_JOBS or upper.startswith(FOR_TESTS)
        if upper.startswith(PREFIX) and not passed_by and not _is_setting(upper):
            known = [f"{PREFIX}{field.upper()}" for field in Config.model_fields]
            raise InvalidRequest(
                f"configuration: {name}: no setting is called so",
                field=name,
                allowed=f"{', '.join(known)}, with __ between group and key",
            )


def _is_setting(name: str) -> bool:
    group, separator, _ = name.removeprefix(PREFIX).partition("__")
    field = Config.model_fields.get(group.lower())
    return field is not None and (not separator or isinstance(field.default, Group))


def _check_file(file: str | None) -> None:
    """Refuse a file that was named and cannot be read; the settings' reader would pass it over."""
    if not file:
        return
    try:
        with Path(file).open("rb") as stream:
            tomllib.load(stream)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequest(
            f"configuration: {file}: {said}",
            field="FORGEYARD_CONFIG",
            value=file,
            allowed="a TOML file",
        ) from error


def environment(names: tuple[str, ...]) -> dict[str, str]:
    """Read the named environment variables that are set: the allow-list, never the rest."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(**extra: str) -> dict[str, str]:
    """Give our own child processes (never jobs) this process's environment and `extra`."""
    return {**os.environ, **extra}
