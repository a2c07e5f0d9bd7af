"""``make chaos SEED=N``: the seed's scenario undisturbed, then with its misfortunes, then the verdict. Exits with 1 when something is wrong.

The last line is ``kills=… faults=… lost=0 duplicated=0 needless_writes=0``; what went wrong stands before it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.apiserver.api_server import run_api_server
from tests.apiserver.faults import NO_CONNECTION
from tests.chaos.judge import Verdict, judge
from tests.chaos.plan import build_plan
from tests.chaos.play import Remains, play_disturbed, play_undisturbed

LEAST_KILLS, LEAST_FAULTS = 20, 20


async def play(kubeconfig: Path, directory: Path, seed: int) -> tuple[Remains, Verdict]:
    """Both runs of one seed on one API server, and what they come to."""
    calm, rough = directory / "undisturbed", directory / "disturbed"
    calm.mkdir()
    rough.mkdir()
    undisturbed = await play_undisturbed(kubeconfig, calm, seed)
    disturbed = await play_disturbed(kubeconfig, rough, seed, build_plan(seed))
    return disturbed, judge(disturbed, undisturbed)


def say(remains: Remains, verdict: Verdict) -> None:
    """The misfortunes, then everything that is wrong, then the summary."""
    for entry in remains.journal:
        if entry.fault not in ("", NO_CONNECTION):
            print(entry.line(remains.began))
    for title, sentences in (("LOST", verdict.lost), ("DUPLICATED", verdict.duplicated), ("NEEDLESS WRITE", verdict.needless_writes)):
        for sentence in sentences:
            print(f"{title}: {sentence}")
    print(verdict.summary)


def main() -> int:
    """One seed; exit status 0 when everything held and enough went wrong to say so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True, help="any number; the same one draws the same misfortunes")
    parser.add_argument("--keep", type=Path, help="folder for the operator's logs and stores; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = (given.keep or Path(temporary)) / f"seed-{given.seed}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        with run_api_server(Path(temporary) / "api") as server:
            os.environ["KUBECONFIG"] = str(server.kubeconfig)
            remains, verdict = asyncio.run(play(server.kubeconfig, directory, given.seed))
    say(remains, verdict)
    return 0 if verdict.is_clean and verdict.kills >= LEAST_KILLS and verdict.faults >= LEAST_FAULTS else 1


if __name__ == "__main__":
    sys.exit(main())
