"""Logs over HTTP: merged, followed, and whole characters in every answer."""

import asyncio

import pytest

from tests.integration.api.house import House, a_document

pytestmark = pytest.mark.integration


async def _read_all(house: House, run_id: str, **params: object) -> list[dict]:
    chunks: list[dict] = []
    after = None
    for _ in range(100):
        question = {"limit": 2, **params, **({"after": after} if after else {})}
        page = (await house.people.get(f"/v1/runs/{run_id}/logs", params=question)).json()
        chunks += page["chunks"]
        after = page["next"]
        if page["ended"] or not page["chunks"]:
            break
    return chunks


async def test_the_logs_of_all_jobs_come_merged_page_by_page(house: House) -> None:
    session_id = await house.register()
    run = await house.submit(a_document(one={}, two={}))
    first, second = await house.offered(session_id)
    for held in (first, second):
        await house.tell(held, "accept")
    for number in range(3):
        for held in (first, second):
            assert await house.log(held, number, f"line {number}\n".encode()) == 204
    chunks = await _read_all(house, run["run_id"])
    assert sorted((chunk["job"], chunk["text"]) for chunk in chunks) == [
        (job, f"line {number}\n") for job in ("one", "two") for number in range(3)
    ]
    only = await _read_all(house, run["run_id"], job="two", attempt=1)
    assert [chunk["text"] for chunk in only] == [f"line {number}\n" for number in range(3)]
    assert {chunk["job"] for chunk in only} == {"two"}
    missing = await house.people.get(f"/v1/runs/{run['run_id']}/logs", params={"job": "three"})
    assert (missing.status_code, missing.json()["allowed"]) == (404, "one, two")


async def test_a_follower_gets_what_comes_and_learns_of_the_end(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    url = f"/v1/runs/{held.offer['run_id']}/logs"
    waiting = asyncio.create_task(sqlite_house.people.get(url, params={"wait_ms": 10_000}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await sqlite_house.log(held, 0, b"at last\n")
    page = (await waiting).json()
    assert [chunk["text"] for chunk in page["chunks"]] == ["at last\n"]
    assert page["ended"] is False
    params = {"wait_ms": 10_000, "after": page["next"]}
    waiting = asyncio.create_task(sqlite_house.people.get(url, params=params))
    await sqlite_house.tell(held, "complete", outcome="succeeded")
    page = (await waiting).json()
    assert (page["chunks"], page["ended"]) == ([], True)


async def test_a_follower_without_news_returns_in_time(sqlite_house: House) -> None:
    run = await sqlite_house.submit()
    answer = await sqlite_house.people.get(f"/v1/runs/{run['run_id']}/logs", params={"wait_ms": 20})
    assert answer.json()["chunks"] == []
    assert answer.json()["ended"] is False


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_a_character_cut_in_two_comes_out_whole(sqlite_house: House, limit: int) -> None:
    held = await sqlite_house.accepted()
    data = "naïve €5 💥!\n".encode()
    for number, at in enumerate(range(0, len(data), 2)):
        await sqlite_house.log(held, number, data[at : at + 2])
    chunks = await _read_all(sqlite_house, str(held.offer["run_id"]), limit=limit)
    assert "".join(chunk["text"] for chunk in chunks) == "naïve €5 💥!\n"


async def test_bytes_that_are_no_text_are_shown_as_such(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    await sqlite_house.log(held, 0, b"\xff\xfe\x00\x80 end\n")
    (chunk,) = await _read_all(sqlite_house, str(held.offer["run_id"]))
    assert chunk["text"] == "��\x00� end\n"


async def test_a_cursor_of_somebody_elses_making_is_refused(sqlite_house: House) -> None:
    run = await sqlite_house.submit()
    answer = await sqlite_house.people.get(
        f"/v1/runs/{run['run_id']}/logs", params={"after": "!!!"}
    )
    assert (answer.status_code, answer.json()["field"]) == (422, "after")
