"""Whatever a provider answers, an adapter gives sense or one of our errors, and nothing else."""

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgeyard.errors import ForgeyardError
from forgeyard.fleet.ports import Interruption, Machine
from providers import aws_errors, ec2, records

FEW = settings(max_examples=50, deadline=None)
TEXT = st.text(max_size=20)
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.datetimes()
KEYS = st.sampled_from(
    [
        *("InstanceId", "State", "Name", "Tags", "Key", "Value", "ImageId", "Placement"),
        *("LaunchTime", "StateReason", "Instances", "Reservations", "NextToken", "Messages"),
        *("Body", "ReceiptHandle", "Error", "Code", "ResponseMetadata", "HTTPStatusCode"),
        *("HTTPHeaders", "retry-after", "detail-type", "detail", "source", "time"),
        *("instance-id", "state", "key", "digest", "tags", "created_at", "pid", "started"),
    ]
)
ANYTHING = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6)
)
ENTRY = st.fixed_dictionaries(
    {"InstanceId": TEXT, "State": st.fixed_dictionaries({"Name": TEXT}) | ANYTHING},
    optional={
        "Tags": st.lists(st.fixed_dictionaries({"Key": TEXT, "Value": TEXT}) | ANYTHING),
        "LaunchTime": st.datetimes() | ANYTHING,
        "Placement": ANYTHING,
        "StateReason": ANYTHING,
    },
)


def survives(read: Callable[[], object]) -> object:
    """Read something; give `None` for an error of ours."""
    try:
        return read()
    except ForgeyardError:
        return None


@FEW
@given(entry=ENTRY | ANYTHING)
@example(entry={"InstanceId": "i-1", "State": {"Name": "no-such-state"}})
@pytest.mark.requirement("TST-034")
def test_any_machine_is_a_machine_or_an_error(entry: object) -> None:
    found = survives(lambda: ec2.instance(entry).machine("r"))
    assert found is None or isinstance(found, Machine)


@FEW
@given(answer=ANYTHING)
def test_any_answer_is_a_page_or_an_error(answer: object) -> None:
    survives(lambda: ec2.page(answer))
    survives(lambda: ec2.made(answer))
    for message in ec2.messages(answer):
        ec2.receipt(message)


BODY = TEXT | ANYTHING.map(lambda value: json.dumps(value, default=str))


@FEW
@given(
    message=ANYTHING | st.fixed_dictionaries({"Body": BODY, "ReceiptHandle": TEXT}), text=st.text()
)
def test_any_message_is_a_warning_or_nothing(message: object, text: str) -> None:
    found = ec2.notice(message)
    assert found is None or isinstance(found, Interruption)
    assert ec2.notice({"Body": text, "ReceiptHandle": "r"}) is None


@FEW
@given(time=st.text() | st.integers() | st.floats(), name=TEXT, state=TEXT)
def test_a_warning_with_any_time_is_a_warning_or_nothing(
    time: object, name: str, state: str
) -> None:
    event = {
        "detail-type": ec2.WARNING,
        "source": "aws.ec2",
        "time": time,
        "detail": {"instance-id": name, "state": state},
    }
    found = ec2.notice({"Body": json.dumps(event), "ReceiptHandle": "r"})
    assert found is None or found.ref == name


@FEW
@given(response=ANYTHING)
@pytest.mark.requirement("TST-034")
def test_any_error_is_one_of_ours(response: object) -> None:
    error = aws_errors.ours(aws_errors.read(response), what="x", writes=True)
    assert isinstance(error, ForgeyardError)


@FEW
@given(text=st.binary() | ANYTHING.map(lambda value: json.dumps(value, default=str).encode()))
@example(text=b'{"key":"a","digest":"d","tags":{},"created_at":1,"pid":-1}')
@example(text=b"[" * 60_000)
def test_any_record_is_a_machine_or_an_error(text: bytes) -> None:
    found = survives(lambda: records.parse(text))
    assert found is None or (isinstance(found, records.Record) and found.pid >= 0)


def test_a_record_that_says_too_much_is_no_record() -> None:
    record = {"key": "a", "digest": "d", "tags": {str(n): "x" for n in range(65)}, "created_at": 1}
    with pytest.raises(ForgeyardError):
        records.parse(json.dumps(record).encode())
