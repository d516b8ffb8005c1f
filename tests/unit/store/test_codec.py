"""Reading one field of a stored dataclass, and what is no such text."""

import json

import pytest

from forgeyard.errors import Corrupt
from forgeyard.model.equipment import DeviceRequirement, EquipmentRequirement, GpuRequirement
from forgeyard.model.job import JobSpec, Step, Timeouts
from forgeyard.model.units import Millis
from forgeyard.store import codec

SPEC = JobSpec(
    name="build", steps=(Step(name="one", run="true"),), timeouts=Timeouts(queue=Millis(7))
)


def test_a_part_is_what_the_whole_would_hold() -> None:
    text = codec.encode(SPEC)
    assert codec.decode_part(Timeouts, text, "timeouts") == codec.decode(JobSpec, text).timeouts


def test_a_part_is_read_although_another_is_damaged() -> None:
    text = codec.encode(SPEC).replace('"steps":[', '"steps":[17,')
    with pytest.raises(Corrupt):
        codec.decode(JobSpec, text)
    assert codec.decode_part(Timeouts, text, "timeouts") == SPEC.timeouts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "17",
        "{}",
        '{"timeouts": 3}',
        '{"timeouts": {"queue": "soon"}}',
        '{"a":' * 100_000,
    ],
)
def test_what_cannot_be_read_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        codec.decode_part(Timeouts, text, "timeouts")


def test_a_specification_from_before_equipment_wants_none() -> None:
    stored = json.loads(codec.encode(SPEC))
    del stored["requires"]["equipment"], stored["requires"]["agent_version"]
    assert codec.decode(JobSpec, json.dumps(stored)) == SPEC


def test_a_job_stored_with_its_one_gpu_still_wants_it() -> None:
    stored = '{"cpu_features":[],"devices":[{"kind":"phone","count":2}],"gpu":{"count":2}}'
    wanted = codec.decode(EquipmentRequirement, stored)
    assert (wanted.gpu, wanted.gpus) == (None, (GpuRequirement(count=2),))
    assert wanted.devices == (DeviceRequirement(kind="phone", count=2),)
    assert codec.decode(EquipmentRequirement, codec.encode(wanted)) == wanted
