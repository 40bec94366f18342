"""The long scenario: nodes hang, die and come back, while a channel is stuck, others lose messages, and people mute.

What happens is a list of steps, `(minute, words)`. HOUR is the short form. `drawn_steps` draws others for the long one:

    python -m tests.nsqadmin.scenario --count=5 --seed=1
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from nsqadmin.cluster.model import Severity
from nsqadmin.diagnosis.incident import Mark
from nsqcommon.wire.message import Message
from scripts.command_line import option, read_options
from tests.nsqadmin import simulated_world, steered_world
from tests.nsqadmin.steered_world import WALL, World, buried, finished, given_back
from tests.nsqadmin.verdicts import DETECTED, SILENT, Fault, Verdicts

Steps = Sequence[tuple[float, str]]
_Consumer = steered_world.Consumer | simulated_world.Consumer

NODES: Final = 3
POLICY: Final = (
    '[[policy]]\ntopic = "quotes"\nchannel = "trader"\nmax_messages = 300\noverflow = "drop-oldest"\n'
    '[[policy]]\ntopic = "ticks"\nchannel = "view"\nttl = "2m"\n'
)
OTHER_POLICY: Final = f'{POLICY}[[policy]]\ntopic = "elsewhere"\nttl = "1h"\n'
# The words are those of `Scenario.faults`, or the number of a node with what happens to it.
HOUR: Final[Steps] = (
    (4, "stuck"),
    (6, "1 differs"),
    (8, "1 differs muted"),
    (10, "1 dies"),
    (16, "1 back"),
    (19, "drops"),
    (19, "expires"),
    (23, "3 hangs"),
    (27, "3 back"),
    (28, "drops over"),
    (28, "expires over"),
    (32, "1 dies"),
    (35, "1 back"),
    (38, "3 hangs"),
    (39, "nobody"),
    (40, "fails"),
    (42, "nobody muted"),
    (43, "3 back"),
    (45, "nobody over"),
    (46, "1 differs over"),
    (47, "buries"),
    (48, "fails over"),
    (52, "buries over"),
    (56, "stuck over"),
    (60, "the end"),
)
_SLOW: Final = 3  # messages in a tick
_ALL: Final = 1_000_000
_TICK: Final = 5.0  # seconds, in the long form
_SIMULATED: Final = 10


class Scenario:
    def __init__(self, world: World | simulated_world.World) -> None:
        self.world = world
        self.verdicts = Verdicts(world)
        self._faults: dict[str, Fault] = {}  # by the words that begin them, those that last
        # Without reports of touches, only timeouts show that consumers are stuck.
        self._has_old = any(node.is_old for node in world.nodes)
        self._nobody_until = 0.0
        self._muted: set[str] = set()  # what is muted, also when it comes again
        self._shipping = world.consumer("orders", "shipping", ready=20, msg_timeout=60 if self._has_old else 600)
        self._trader = world.consumer("quotes", "trader", ready=10)
        self._view = world.consumer("ticks", "view", ready=10)
        self._post = world.consumer("letters", "post")
        self._sender = world.consumer("mails", "sender")
        self._ledger = world.consumer("invoices", "ledger")
        world.actors += [
            world.publisher("orders", 5),
            world.publisher("quotes", 10),
            world.publisher("ticks", 10),
            world.publisher("letters", 1),
            world.publisher("mails", 5),
            world.publisher("invoices", 5),
            world.consumer("orders", "billing"),
            *(self._shipping, self._trader, self._view, self._post, self._sender, self._ledger),
        ]
        # With two of three nodes down, some rules need longer until they have seen enough.
        slack = 60.0 if isinstance(world, simulated_world.World) else 0.0
        # What makes each fault, and what ends it.
        self._channels: Mapping[str, tuple[Fault, Callable[[], None], Callable[[], None]]] = {
            "stuck": (
                Fault("orders/shipping", detected=DETECTED + slack),
                _at(self._shipping, 0),
                _at(self._shipping, _ALL),
            ),
            "drops": (Fault("quotes/trader", detected=180 + slack), _at(self._trader, _SLOW), _at(self._trader, _ALL)),
            "expires": (Fault("ticks/view", detected=180 + 2 * slack), _at(self._view, _SLOW), _at(self._view, _ALL)),
            "fails": (Fault("mails/sender"), _by(self._sender, given_back), _by(self._sender, finished)),
            "buries": (
                Fault("invoices/ledger", detected=DETECTED + slack),
                _by(self._ledger, buried),
                _by(self._ledger, finished),
            ),
            "nobody": (Fault("letters/post"), self._post.leave, self._post.join),
        }

    def run(self, steps: Steps) -> list[str]:
        """Take the steps, and return what was wrong with nsqadmin's verdicts."""

        async def taken() -> None:
            for minute, words in steps:
                await self.world.pass_time(WALL + 60 * minute - self.world.now)
                await self._take(words)

        self.world.run(taken)
        addresses = [node.address for node in self.world.nodes]
        names = {address: f"node {number}" for number, address in enumerate(addresses, 1)}
        failures = self.verdicts.failures()
        for address, name in names.items():
            failures = [text.replace(address, name) for text in failures]
        return failures

    async def _take(self, words: str) -> None:
        match words.split():
            case ["deploy", *over]:
                # With the others silent, one node without a consumer is D4, which has less patience than D3.
                if over:
                    if "nobody" not in self._faults:
                        self._post.join()
                elif (
                    "nobody" not in self._faults and self.world.all_answer and self.world.now - self._nobody_until > 600
                ):
                    self._post.leave()
            case [what, "over"]:
                _, _, mend = self._channels[what]
                mend()
                self.verdicts.end(self._faults.pop(what))
                self._nobody_until = self.world.now if what == "nobody" else self._nobody_until
            case [what, "muted"]:
                self._mute(self._faults[what])
            case [number, "differs"]:
                node = self.world.nodes[int(number) - 1]
                node.policy.write_text(OTHER_POLICY)
                fault = Fault(node.address, Severity.WARNING, is_muted=node.address in self._muted)
                self._faults[f"{number} differs"] = self.verdicts.begin(fault)
            case [number, "differs", "over"]:
                self.world.nodes[int(number) - 1].policy.write_text(POLICY)
                self.verdicts.end(self._faults.pop(f"{number} differs"))
            case [number, "differs", "muted"]:
                self._mute(self._faults[f"{number} differs"])
            case [number, "dies" | "hangs" as how]:
                node = self.world.nodes[int(number) - 1]
                (node.die if how == "dies" else node.hang)()
                self._faults[number] = self.verdicts.begin(Fault(node.address, detected=60, is_death=True))
            case [number, "back"]:
                node = self.world.nodes[int(number) - 1]
                (node.go_on if node.is_hung else node.come_back)()
                self.verdicts.end(self._faults.pop(number))
            case ["nsqadmin", "restarts"]:
                assert isinstance(self.world, simulated_world.World)
                await self.world.restart()
                self.verdicts.restart()
            case [what] if what in self._channels:
                fault, make, _ = self._channels[what]
                make()
                self._faults[what] = self.verdicts.begin(fault.again(is_muted=fault.subject in self._muted))
            case _:
                assert words == "the end", words

    def _mute(self, fault: Fault) -> None:
        """Mute the incidents of this fault, if there are some already."""
        now, book = self.world.now, self.world.book
        keys = {it.key for it in book.open() if fault.subject in self.verdicts.subjects_of(it, but=SILENT)}
        for key in keys:
            assert book.mute(key, Mark(by="ana", at=now, until=now + 4 * 3600))
        fault.is_muted |= bool(keys)
        self._muted.update((fault.subject,) if keys else ())


def _at(consumer: _Consumer, per_tick: int) -> Callable[[], None]:
    def change() -> None:
        consumer.per_tick = per_tick

    return change


def _by(consumer: _Consumer, answer: Callable[[Message], bytes]) -> Callable[[], None]:
    def change() -> None:
        consumer.answer = answer

    return change


def drawn_steps(random: Random, minutes: float = 120.0, *, is_simulated: bool = False) -> Steps:
    """Draw what happens. Each fault comes and goes by itself, so that any may meet any other.

    In a simulated world, nsqadmin is restarted, too, and the consumers of a channel are deployed.
    """
    steps = [
        *_intervals(random, "stuck", "stuck over", minutes, lasts=(5, 50), pause=(5, 30)),
        *_intervals(random, "drops", "drops over", minutes, lasts=(6, 20), pause=(8, 30)),
        *_intervals(random, "expires", "expires over", minutes, lasts=(6, 20), pause=(8, 30)),
        *_intervals(random, "fails", "fails over", minutes, lasts=(5, 20), pause=(8, 40)),
        *_intervals(random, "buries", "buries over", minutes, lasts=(5, 20), pause=(8, 40)),
        *_intervals(random, "nobody", "nobody over", minutes, lasts=(4, 20), pause=(8, 40)),
        *_intervals(random, "1 differs", "1 differs over", minutes, lasts=(10, 60), pause=(5, 20)),
        (minutes, "the end"),
    ]
    for number in range(1, NODES + 1):
        how = random.choice(("dies", "hangs"))
        steps += _intervals(random, f"{number} {how}", f"{number} back", minutes, lasts=(2, 12), pause=(6, 50))
    for at, words in [*steps]:
        if words in ("nobody", "1 differs") and random.random() < 0.7:
            steps.append((at + 3, f"{words} muted"))
    if is_simulated:
        steps += [(random.uniform(1, minutes - 6), "nsqadmin restarts") for _ in range(random.randrange(4))]
        steps += _intervals(random, "deploy", "deploy over", minutes, lasts=(0.2, 0.7), pause=(8, 40))
    return sorted(steps)


def _intervals(
    random: Random, begin: str, end: str, minutes: float, *, lasts: tuple[float, float], pause: tuple[float, float]
) -> Iterator[tuple[float, str]]:
    """Yield when something begins and ends. It ends early enough before the end of all to be said no more."""
    at = 4 + random.uniform(0, pause[1])
    while (over := at + random.uniform(*lasts)) < minutes - 6:
        yield at, begin
        yield over, end
        at = over + random.uniform(*pause)


def run_in(folder: Path, steps: Steps, *, tick: float) -> list[str]:
    with ExitStack() as stack:
        return Scenario(World(folder, stack, NODES, policy=POLICY, tick=tick)).run(steps)


def run_simulated(steps: Steps, *, tick: float = _TICK, has_old: bool = False) -> list[str]:
    """Take the steps in a simulated world, in which one node may be of an earlier version."""
    limits = {("quotes", "trader"): {"max_messages": 300.0}, ("ticks", "view"): {"ttl": 120.0}}
    world = simulated_world.World(NODES, policies=limits, tick=tick)
    for node in world.nodes:
        node.policy.write_text(POLICY)
    world.nodes[1].is_old = has_old
    return Scenario(world).run(steps)


def run_drawn(seed: int, *, minutes: float = 120.0, tick: float = _TICK) -> list[str]:
    """Draw a scenario, run it in a simulated world, and return what was wrong."""
    random = Random(seed)
    return run_simulated(drawn_steps(random, minutes, is_simulated=True), tick=tick, has_old=random.random() < 0.5)


@dataclass(frozen=True, kw_only=True)
class _Options:
    count: int = option(1, f"how many scenarios of two hours to draw, and {_SIMULATED} simulated ones for each")
    seed: int = option(0, "seed of the first one; each next one has the next")


def main() -> int:
    options = read_options(_Options, name="python -m tests.nsqadmin.scenario", about=(__doc__ or "").split("\n")[0])
    bad = 0
    for seed in range(_SIMULATED * options.seed, _SIMULATED * (options.seed + options.count)):
        failures = run_drawn(seed)
        bad += bool(failures)
        print("\n".join([f"simulated, seed {seed}: {len(failures)} failures", *failures]), flush=True)
    for seed in range(options.seed, options.seed + options.count):
        with TemporaryDirectory(prefix="scenario-") as folder:
            failures = run_in(Path(folder), drawn_steps(Random(seed)), tick=_TICK)
        bad += bool(failures)
        print("\n".join([f"seed {seed}: {len(failures)} failures", *failures]), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
