"""What a run's jobs have produced: listed, and sent as the archives that agents uploaded."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from forgeyard.api.callers import RunReader
from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import NamePath, RunPath
from forgeyard.api.transfers import download
from forgeyard.store import artifacts
from forgeyard.store.engine import read
from forgeyard.store.naming import run_id_of

router = APIRouter(prefix="/v1/runs/{run_id}/artifacts", tags=["runs"])
ARCHIVE = "application/gzip"


@router.get("")
def list_artifacts(run_id: RunPath, deps: Deps, who: RunReader) -> tuple[artifacts.Artifact, ...]:
    """List what there is to download."""
    with read(deps.engine) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        return artifacts.of_run(connection, whole)


@router.get("/{job}/{name}", response_class=Response)
def get_artifact(
    run_id: RunPath,
    job: NamePath,
    name: Annotated[str, Path(max_length=64)],
    request: Request,
    deps: Deps,
    who: RunReader,
) -> Response:
    """Send one output as a tar.gz archive."""
    with read(deps.engine) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        found = artifacts.find(connection, whole, job, name)
    return download(
        request,
        deps.blobs.open(found.digest),
        digest=found.digest,
        size=found.size_bytes,
        media_type=ARCHIVE,
        name=f"{found.job}-{found.name}.tar.gz",
    )
