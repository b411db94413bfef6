"""fping's lines of JSON, and logs of ping: what is read, what is refused and with which cure."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.sources.inputs import inspect, match_files
from beam_pipeline.sources.options import ReadOptions
from tests.support.forms import SRC, measured, options, read
from tests.support.repository import ROOT

TIME = "1767225600.12345"
REPLY = {"timestamp": TIME, "host": "192.0.2.2", "seq": 0, "size": 64, "rtt": 12.5}
LOST = {"timestamp": TIME, "host": "192.0.2.2", "seq": 1}
ALL_RTTS = {"host": "192.0.2.2", "values": [12.5, None]}


def write(path: Path, *lines: Any) -> None:
    path.write_text("\n".join(map(json.dumps, lines)))


def without_time(ping: dict) -> dict:
    return {name: value for name, value in ping.items() if name != "timestamp"}


@pytest.mark.parametrize(
    ("lines", "how", "message"),
    [
        ([{"resp": REPLY}], options(), r"without src_addr: pass --columns src_addr==ADDRESS"),
        (
            [{"timeout": without_time(LOST)}],
            options(f"src_addr=={SRC}"),
            "run fping with -D, or pass --columns event_time==TIME",
        ),
        ([{"vSum": ALL_RTTS}], options(), "has only fping's summaries"),
        ([{"resp": REPLY}], ReadOptions(input_format="scamper_json"), "holds pings of fping, not"),
        ([{"prb_id": 1}], ReadOptions(input_format="fping_json"), "not --input_format=fping_json"),
    ],
)
def test_what_fping_left_out(
    tmp_path: Path, lines: list[dict], how: ReadOptions, message: str
) -> None:
    write(tmp_path / "x", *lines)
    with pytest.raises(ProbelineError, match=message) as caught:
        inspect(match_files([str(tmp_path / "x")])[0], how)
    assert str(caught.value).startswith(str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("time", "columns", "time_unit", "expected"),
    [
        (TIME, "", "", 1_767_225_600_123_450),
        ("2026-01-01T01:00:00+0100", "", "iso", 1_767_225_600_000_000),
        (None, ",event_time==2026-01-01T00:00:01Z", "", 1_767_225_601_000_000),
        ("Thu Jan  1 00:00:00 2026", ",event_time==2026-01-01", "", 1_767_225_600_000_000),
    ],
)
def test_times_of_fping(
    tmp_path: Path, time: str | None, columns: str, time_unit: Any, expected: int
) -> None:
    lines = [{**each, "timestamp": time} if time else without_time(each) for each in (REPLY, LOST)]
    reply, lost = lines
    write(tmp_path / "x", {"resp": reply}, {"timeout": lost}, {"vSum": ALL_RTTS})
    how = options(f"src_addr=={SRC}{columns}", time_unit=time_unit)
    found = measured(read(tmp_path / "x", how))
    assert [(ping[0], ping[-1]) for ping in found] == [(expected, -1.0), (expected, 12.5)]


def test_bad_lines_of_fping(tmp_path: Path) -> None:
    """A line without a ping's values is a dead letter; a kind of a later version is left out."""
    lines = [
        {"resp": REPLY},
        [1],
        {"later": {"host": "192.0.2.2"}},
        {"resp": {**REPLY, "rtt": None}},
        {"resp": {**REPLY, "host": "host.example"}},
        {"resp": {**REPLY, "timestamp": {"s": 1}}},
        {"resp": 7},
        {"timeout": LOST, "more": 1},
    ]
    write(tmp_path / "x", *lines)
    batches = list(read(tmp_path / "x", options(f"src_addr=={SRC}")))
    letters = sorted((each.row, each.reason) for batch in batches for each in batch.letters)
    assert letters == [
        (1, "json_not_an_object"),
        (3, "rtt_null"),
        (4, "dst_addr_invalid"),
        (5, "event_time_unreadable"),
        (6, "not_a_ping"),
        (7, "not_a_ping"),
    ]
    assert len(measured(iter(batches))) == 1


LOG = """PING 192.0.2.2 (192.0.2.2) 56(84) bytes of data.
[1767225600.123456] 64 bytes from 192.0.2.2: icmp_seq=1 ttl=55 time=12.5 ms
[1767225601.123456] no answer yet for icmp_seq=2
[1767225602.123456] 64 bytes from 192.0.2.2: icmp_seq=3 ttl=55 time=7 ms (DUP!)
[1767225603.123456] From 192.0.2.9 icmp_seq=4 Destination Host Unreachable
[1767225604.123456] no answer yet for icmp_seq=4
64 bytes from 192.0.2.2: icmp_seq=5 ttl=55 time=7 ms

--- 192.0.2.2 ping statistics ---
5 packets transmitted, 3 received, 40% packet loss, time 4005ms
rtt min/avg/max/mdev = 7/9.75/12.5/2.75 ms

PING host.example(2001:db8::1) from 2001:db8::2 eth0: 56 data bytes
[1767225605.123456] 64 bytes from 2001:db8::1: icmp_seq=1 ttl=55 time=0.045 ms
"""


def test_a_log_of_ping_is_converted_by_the_command_of_the_docs(tmp_path: Path) -> None:
    fping, windows = "[1767225600.1] 192.0.2.2 : [0], 84 bytes\n", "\r\nPinging 192.0.2.2 with 32"
    for path, text in (("ping.log", LOG), ("fping.log", fping), ("windows.log", windows)):
        (tmp_path / path).write_text(text)
        with pytest.raises(ProbelineError, match=r"is a log of ping.*the awk command of docs"):
            inspect(match_files([str(tmp_path / path)])[0], ReadOptions())
    page = (ROOT / "docs/your_data.md").read_text()
    command = re.search(r"^awk .*?> ping\.csv$", page, re.MULTILINE | re.DOTALL)
    columns = re.search(r"--columns (\S*dst_addr=2\S*)", page)
    assert command and columns
    subprocess.run(command[0], shell=True, cwd=tmp_path, check=True)
    found = read(tmp_path / "ping.csv", options(columns[1], time_unit="s"))
    expected = [(0, 12.5), (1, -1.0), (4, -1.0), (5, 0.045)]
    assert [(at - 1_767_225_600_123_456, rtt) for at, *_, rtt in measured(found)] == [
        (seconds * 1_000_000, pytest.approx(rtt)) for seconds, rtt in expected
    ]
