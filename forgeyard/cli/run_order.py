"""`forgeyard run reprioritise`: another place in the queue for all jobs of a run."""

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.job import Adjust, NewPriority, order_wish, put_reordered
from forgeyard.cli.options import DataDir, Json, RunId, TokenFile, Url, connect
from forgeyard.cli.scope import Why
from forgeyard.cli.share_shapes import Reordered


def reprioritise(
    run: RunId,
    reason: Why,
    priority: NewPriority = None,
    adjust: Adjust = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Push every job of a run ahead in its queue, or behind.

    Jobs that have ended stay as they are.

    \b
    Example:
      forgeyard run reprioritise run_01JD --adjust -50 --reason "can wait"
    """
    wish = order_wish(priority, adjust, reason)
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'runs', run)}:reprioritise", wish)
    if as_json:
        output.put_json(answer)
        return
    for job in shaped(tuple[Reordered, ...], answer):
        put_reordered(job)
