"""`forgeyard fleet reservation | provider | pin | unpin | retire | release`: for a while."""

from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.fleet import FleetName, For
from forgeyard.cli.fleet_shapes import Reservation
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.pool import instant_of
from forgeyard.cli.submitting import because
from forgeyard.model.units import parse_duration

app = typer.Typer()
reservation = typer.Typer(no_args_is_help=True, help="Capacity that is wanted in a window of time.")
provider = typer.Typer(no_args_is_help=True, help="Leave a whole provider alone.")
MachineId = Annotated[
    str, typer.Argument(metavar="MACHINE", help="Its id; see `forgeyard fleet instances`.")
]
ProviderName = Annotated[str, typer.Argument(metavar="PROVIDER", help="As the documents name it.")]


@reservation.command("create")
def create_reservation(
    fleet: FleetName,
    quantity: Annotated[int, typer.Option("--machines", min=1, help="How many.")],
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 2h.")],
    reason: Reason,
    starts: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="When: 2026-12-01T22:00Z, or in: 90m. Or now."),
    ] = "now",
    lead: Annotated[
        str, typer.Option("--lead", metavar="DURATION", help="Made so long before.")
    ] = "10m",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Want capacity in a window of time, whoever's jobs come; those that overlap add up.

    \b
    Example:
      forgeyard fleet reservation create builders --machines 8 --at 2026-12-01T22:00Z --for 2h
        --reason "release 4"
    """
    starts_at = instant_of(starts)
    wish = {
        "quantity": quantity,
        "starts_at": starts_at,
        "ends_at": starts_at + parse_duration(lasts, field="--for"),
        "lead": parse_duration(lead, field="--lead"),
    }
    with connect(url, token_file, data_dir) as client:
        path = path_of("v1", "fleets", fleet, "reservations")
        answer = client.post(path, {**wish, **because(reason)})
    said = _line(shaped(Reservation, answer))
    output.put_done(answer, said, as_json=as_json)


@reservation.command("list")
def list_reservations(
    fleet: FleetName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the reservations of a fleet that have not ended.

    \b
    Example:
      forgeyard fleet reservation list builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "fleets", fleet, "reservations"))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(tuple[Reservation, ...], answer)
    if not found:
        output.say(f"fleet {fleet} has no reservation")
    for one in found:
        output.put(_line(one))


@reservation.command("cancel")
def cancel_reservation(
    reservation_id: Annotated[str, typer.Argument(metavar="RESERVATION", help="Its id.")],
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Want that capacity no more.

    \b
    Example:
      forgeyard fleet reservation cancel rsv_01J… --reason "the release is off"
    """
    with connect(url, token_file, data_dir) as client:
        path = path_of("v1", "fleets", "reservations", reservation_id)
        client.post(f"{path}:cancel", because(reason))
    done = {"reservation_id": reservation_id, "cancelled": True}
    output.put_done(done, f"{reservation_id} is cancelled", as_json=as_json)


def _line(one: Reservation) -> str:
    window = one.reservation
    starts, ends = output.instant(window.starts_at), output.instant(window.ends_at)
    machines = "1 machine" if window.quantity == 1 else f"{window.quantity} machines"
    return f"{window.reservation_id}: {machines} from {starts} to {ends}: {one.reason}"


@provider.command("freeze")
def freeze_provider(
    name: ProviderName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Ask nothing of a provider but to look, whatever its fleets want.

    \b
    Example:
      forgeyard fleet provider freeze aws --reason "somebody has our keys"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'providers', name)}:freeze", because(reason))
    done = {"provider": name, "frozen": True}
    output.put_done(done, f"provider {name} is frozen", as_json=as_json)


@provider.command("thaw")
def thaw_provider(
    name: ProviderName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the fleets of a provider make and take away machines again.

    \b
    Example:
      forgeyard fleet provider thaw aws --reason "new keys"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'providers', name)}:thaw", because(reason))
    done = {"provider": name, "frozen": False}
    output.put_done(done, f"provider {name} is asked again", as_json=as_json)


@app.command()
def pin(
    machine: MachineId,
    reason: Reason,
    lasts: For = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Keep a machine from being let go, a day unless you say, a week at most.

    \b
    Example:
      forgeyard fleet pin cin_01J… --for 2h --reason "a look at its disk"
    """
    wish: dict[str, object] = (
        {} if lasts is None else {"for_ms": parse_duration(lasts, field="--for")}
    )
    with connect(url, token_file, data_dir) as client:
        path = f"{path_of('v1', 'instances', machine)}:pin"
        client.post(path, {**wish, **because(reason)})
    done = {"instance_id": machine, "pinned": True}
    output.put_done(done, f"{machine} stays for {lasts or 'a day'}", as_json=as_json)


@app.command()
def unpin(
    machine: MachineId,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a machine go again when it is not needed.

    \b
    Example:
      forgeyard fleet unpin cin_01J… --reason "seen enough"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'instances', machine)}:unpin", because(reason))
    done = {"instance_id": machine, "pinned": False}
    output.put_done(done, f"{machine} may go when it is not needed", as_json=as_json)


@app.command()
def retire(
    machine: MachineId,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let one machine finish what it has, then let it go; its fleet replaces it if it is needed.

    \b
    Example:
      forgeyard fleet retire cin_01J… --reason "a broken fan"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'instances', machine)}:drain", because(reason))
    done = {"instance_id": machine, "draining": True}
    output.put_done(done, f"{machine} takes no more work, and goes then", as_json=as_json)


@app.command()
def release(
    machine: MachineId,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a quarantined machine go, or say that one is gone of which only people know.

    \b
    Example:
      forgeyard fleet release cin_01J… --reason "we know why it failed"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'instances', machine)}:release", because(reason))
    done = {"instance_id": machine, "released": True}
    output.put_done(done, f"{machine} is released", as_json=as_json)
