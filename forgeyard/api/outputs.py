"""What a run's jobs have produced: listed, and sent as the archives that agents uploaded."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import NamePath, RunPath
from forgeyard.api.transfers import download
from forgeyard.store import artifacts
from forgeyard.store.engine import read
from forgeyard.store.views import run_id_of

router = APIRouter(prefix="/v1/runs/{run_id}/artifacts", tags=["runs"])
ARCHIVE = "application/gzip"


@router.get("")
def list_artifacts(run_id: RunPath, deps: Deps) -> tuple[artifacts.Artifact, ...]:
    """List what there is to download."""
    with read(deps.engine) as connection:
        return artifacts.of_run(connection, run_id_of(connection, run_id))


@router.get("/{job}/{name}", response_class=Response)
def get_artifact(
    run_id: RunPath,
    job: NamePath,
    name: Annotated[str, Path(max_length=64)],
    request: Request,
    deps: Deps,
) -> Response:
    """Send one output as a tar.gz archive."""
    with read(deps.engine) as connection:
        found = artifacts.find(connection, run_id_of(connection, run_id), job, name)
    return download(
        request,
        deps.blobs.open(found.digest),
        digest=found.digest,
        size=found.size_bytes,
        media_type=ARCHIVE,
        name=f"{found.job}-{found.name}.tar.gz",
    )
