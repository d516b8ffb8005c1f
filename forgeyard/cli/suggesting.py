"""`forgeyard job suggest`: what a job might ask for."""

from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.scheduler import job_id_of
from forgeyard.cli.shapes import Suggestion


def suggest(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or RUN/JOB.")],
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Suggest what a job might ask for, by what its recent attempts used.

    Nothing is changed: write it into the run file if you agree.

    \b
    Example:
      forgeyard job suggest run_01JD/test
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "jobs", job_id_of(client, job), "suggestion"))
    if as_json:
        output.put_json(answer)
        return
    output.put(shaped(Suggestion, answer).text)
