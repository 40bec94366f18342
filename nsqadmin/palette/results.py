"""Answers the palette: decides which results a text has for a user, in which order, and what to say about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.cluster.model import Channel, Node, Severity, Topic
from nsqadmin.diagnosis.incident import Open
from nsqadmin.messages.filters import BadFilter, parse_filter
from nsqadmin.palette.commands import COMMANDS, creations, incident_places
from nsqadmin.palette.index import EQUAL_PART, Closeness, Index, Place
from nsqadmin.palette.query import COMMAND_WORDS, Kind, Query, Verb, parse
from nsqadmin.parts.silence import unknown_part, unless_unknown
from nsqadmin.parts.status import PROBLEM, WARNING, NodeStates, Standing

if TYPE_CHECKING:
    from nsqadmin.palette.commands import Command, Context, Offer
    from nsqadmin.parts.links import Links
    from nsqadmin.parts.status import State

MOST: Final = 30
_MOST_COMMANDS: Final = 8
_MOST_SEARCHES: Final = 10
_MOST_INCIDENTS: Final = 5  # before anything is typed
_MOST_IN_A_NOTE: Final = 80  # characters of what was typed
_PAGES: Final = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Consumers", "/consumers"),
    ("Jobs", "/jobs"),
    ("Incidents", "/incidents"),
    ("Nodes", "/nodes"),
    ("Lookup (nsqlookupd)", "/lookup"),
    ("Activity", "/activity"),
    ("Message counter", "/counter"),
    ("Help", "/help"),
)
_MARKS: Final = frozenset(("problem", "warning"))
_INCIDENT_STATES: Final = {Severity.PROBLEM: PROBLEM, Severity.WARNING: WARNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result."""

    name: str
    kind: Kind
    href: str
    detail: str = ""  # its state in a word, or where it is
    mark: str = ""  # the colour of the detail: problem, warning or empty
    is_dialog: bool = False  # the page opens in a dialog


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    hits: tuple[Hit, ...] = ()
    notes: tuple[str, ...] = ()  # sentences, such as why there is no result

    @property
    def said(self) -> str:
        """The number of results, for screen readers."""
        return numbers.several(len(self.hits), "match", "matches") if self.hits else "No match"


def context_places(context: Context) -> tuple[Place, ...]:
    """Return the places that depend on the user: pages, tasks and incidents."""
    pages = (Place(Kind.PAGE, name, target=path) for name, path in _PAGES)
    tasks = (Place(Kind.TASK, name) for name in dict.fromkeys(it.name for it in context.tasks))
    return tuple(chain(pages, tasks, incident_places(context.incidents)))


def find(index: Index, context: Context, text: str, *, given: Sequence[Hit] = (), notes: Sequence[str] = ()) -> Answer:
    """Return the results. `given` are those that nodes and workers have for an id, which come first."""
    finder = _Finder(index, replace(context, places=context.places or context_places(context)))
    answer = finder.answer(parse(text))
    if not (given or notes):
        return answer
    kept = () if finder.is_of_an_id else answer.notes
    return Answer(hits=(*given, *answer.hits)[:MOST], notes=(*notes, *kept))


class _Finder:
    def __init__(self, index: Index, context: Context) -> None:
        self._index = index
        self._context = context
        self._states = _States(context)
        self._notes: list[str] = []
        self.is_of_an_id = False

    def answer(self, query: Query) -> Answer:
        if not query.text:
            return Answer(hits=tuple(self._start()))
        self.is_of_an_id = bool(query.message_id or query.job_id)
        hits = self._hits(query)
        if not hits and not self._notes and (corrected := self._corrected(query)) is not None:
            hits = self._hits(corrected)
            self._notes = [f"No match for “{short(query.text)}”. Did you mean “{short(corrected.text)}”?"]
        if not hits and not self._notes:
            self._notes = self._nothing(query)
            hits = self._unknown_job(query)
        return Answer(hits=tuple(hits[:MOST]), notes=tuple(self._notes))

    def _start(self) -> Iterable[Hit]:
        """Return the results before anything is typed: the worst incidents, and the pages."""
        worst = [
            it for it in self._context.incidents if it.incident.severity is not Severity.INFO and it.state == "open"
        ]
        for place in incident_places(worst[:_MOST_INCIDENTS]):
            yield self._hit(place)
        for place in self._context.places:
            if place.kind is Kind.PAGE:
                yield self._hit(place)

    def _hits(self, query: Query) -> list[Hit]:
        searches = self._searches(query) if query.wanted else []
        commands = self._commands(query)
        places = self._places(query)
        first = 0
        if query.verb not in (None, Verb.GO):  # "drain" may be the name of a topic, too, which is then more likely
            closeness = Closeness(query.words)
            first = sum(closeness.of(it.path) <= EQUAL_PART for it in places)
        if query.verb is not None and not query.names and not (query.is_whole_verb and query.is_main_word):
            first = min(len(places), MOST - _MOST_COMMANDS)
        shown = [self._hit(it) for it in places]
        return [*searches, *shown[:first], *commands, *shown[first:]]

    # Places

    def _places(self, query: Query) -> list[Place]:
        if query.wanted and query.verb is None:
            return []
        if query.verb is not Verb.GO:
            return self._named(query.words)
        kinds = frozenset((query.kind,)) if query.kind is not None else None
        whole = self._named(query.words)
        if not query.names and kinds is None:
            return whole or self._named((), frozenset((Kind.PAGE,)))
        found = self._named(query.objects, kinds)
        return list(dict.fromkeys((*found, *whole)))[:MOST]

    def _named(self, words: Sequence[str], kinds: frozenset[Kind] | None = None, most: int = MOST) -> list[Place]:
        return self._index.find(words, most, also=self._context.places, kinds=kinds, is_wanted=self._is_seen)

    def _is_seen(self, place: Place) -> bool:
        return place.is_seen(self._context.sees)

    def _hit(self, place: Place) -> Hit:
        state = self._states.of(place)
        return Hit(
            name=place.name,
            kind=place.kind,
            href=_href(self._context.links, place),
            detail=state.word if state is not None and state.kind != "ok" else "",
            mark=state.kind if state is not None and state.kind in _MARKS else "",
        )

    # Commands

    def _commands(self, query: Query) -> list[Hit]:
        if query.verb is Verb.CREATE:
            return self._creations(query)
        command = COMMANDS.get(query.verb) if query.verb is not None else None
        if command is None:
            return []
        is_asked_for = query.is_whole_verb or bool(query.names)
        if reason := self._refusal(command):
            if is_asked_for:
                self._notes.append(reason)
            return []
        kinds = command.kinds
        if query.kind is not None and query.kind in kinds:
            kinds = frozenset((query.kind,))
        context, asked = self._context, query.objects

        def is_possible(place: Place) -> bool:
            return not command.why_not(context, place)

        def is_wanted(place: Place) -> bool:
            return self._is_seen(place) and command.may(context, place)

        find = partial(self._index.find, also=context.places, kinds=kinds, is_wanted=is_wanted)
        places = find(asked, _MOST_COMMANDS, is_possible=is_possible)
        if not asked and (here := self._here(kinds)) is not None and is_possible(here) and is_wanted(here):
            places = [here, *(it for it in places if it.name != here.name)][:_MOST_COMMANDS]
        if not places and asked and (others := find(asked, 1)):
            self._notes.append(f"{short(others[0].name)} {command.why_not(context, others[0])}.")
        if not places and not asked and is_asked_for:
            self._notes.append(unless_unknown(context.snapshot, f"There is nothing to {query.verb}."))
        return [self._offer(command.offer(self._context, place), place) for place in places]

    def _refusal(self, command: Command) -> str:
        if not self._context.can_change:
            return "This is a snapshot: nothing can be changed."
        reason = command.refusal(self._context.identity)
        return f"“{command.label}” is not offered: {reason}." if reason else ""

    def _here(self, kinds: frozenset[Kind]) -> Place | None:
        """Return the channel or topic of the page on which the palette was opened."""
        topic = self._context.snapshot.topic(self._context.topic)
        channel = topic.channel(self._context.channel) if topic is not None else None
        if channel is not None and Kind.CHANNEL in kinds:
            name = f"{channel.topic}/{channel.name}"
            return Place(Kind.CHANNEL, name, channel.topic, channel.name, of=channel)
        if topic is not None and Kind.TOPIC in kinds:
            return Place(Kind.TOPIC, topic.name, topic.name, of=topic)
        return None

    def _creations(self, query: Query) -> list[Hit]:
        if not (query.is_whole_verb or query.names):
            return []
        if not self._context.can_change:
            self._notes.append("This is a snapshot: nothing can be changed.")
            return []
        offers, problem = creations(self._context, query)
        if problem:
            self._notes.append(f"Nothing to create: {problem.removesuffix('.')}.")
        return [self._offer(it) for it in offers]

    def _offer(self, offer: Offer, place: Place | None = None) -> Hit:
        state = self._states.of(place) if place is not None else None
        return Hit(
            name=offer.name,
            kind=Kind.COMMAND,
            href=offer.href,
            detail=state.word if state is not None and state.kind != "ok" else "",
            mark=state.kind if state is not None and state.kind in _MARKS else "",
            is_dialog=True,
        )

    # Searches in messages

    def _searches(self, query: Query) -> list[Hit]:
        try:
            parse_filter(query.wanted)
        except BadFilter as error:
            self._notes.append(f"This search is not understood: {error}.")
            return []
        places = self._index.find(
            query.where,
            _MOST_SEARCHES,
            kinds=frozenset((Kind.TOPIC,)),
            is_possible=_has_history,
            is_wanted=self._is_seen,
        )
        if not query.where:
            here = self._here(frozenset((Kind.TOPIC,)))
            if here is not None and _has_history(here) and self._is_seen(here):
                places = [here, *(it for it in places if it.name != here.name)][:_MOST_SEARCHES]
            if len(places) == _MOST_SEARCHES:
                self._notes.append("For another topic, add “in” and a part of its name.")
        elif not places:
            self._notes.append(f"No topic with a history matches “{short(' '.join(query.where))}”.")
        return [
            Hit(
                name=f"Search {short(query.wanted)} in {place.name}",
                kind=Kind.SEARCH,
                href=self._context.links.topic(place.name, tab="messages", filter=query.wanted),
            )
            for place in places
        ]

    # Nothing found

    def _corrected(self, query: Query) -> Query | None:
        """Return the query without its typing errors; None if no name is close."""
        if query.message_id or query.job_id or query.wanted:
            return None
        also = {it.path[1:-1] for it in self._context.places if it.kind is not Kind.INCIDENT}
        typed = query.text.split()
        corrected = list(typed)
        for at, word in enumerate(query.words):
            if self._named((word,), most=1) or (at == 0 and word in COMMAND_WORDS):
                continue
            candidates = also if at else also | set(COMMAND_WORDS)
            corrected[at] = self._index.correction(word, also=candidates, is_wanted=self._is_seen) or typed[at]
            if at == 0 and parse(corrected[at]).verb is Verb.CREATE:
                break  # the other words are a new name
        return parse(" ".join(corrected)) if corrected != typed else None

    def _nothing(self, query: Query) -> list[str]:
        snapshot = self._context.snapshot
        notes = [f"No match for “{short(query.text)}”."]
        if unknown := unknown_part(snapshot):
            notes.append(unknown)
        if not snapshot.has_all_clients and not query.wanted and self._context.can_change:
            notes.append("Not all consumers were known: they are asked now, so try again in a moment.")
        return notes

    def _unknown_job(self, query: Query) -> list[Hit]:
        """Return an offer to look for a job. An id may be anything, and nodes aren't asked at each keystroke."""
        word = query.text
        is_likely = len(query.words) == 1 and any(map(str.isdigit, word)) and not self.is_of_an_id
        if not (is_likely and self._context.has_jobs and self._context.identity.may(Right.PAYLOAD)):
            return []
        return [
            Hit(name=f"Look for a job with the id {short(word)}", kind=Kind.JOB, href=self._context.links.job(word))
        ]


class _States:
    """The words for how places are. Made only for the few that are shown."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: tuple[Standing, NodeStates] | None = None

    def of(self, place: Place) -> State | None:
        context = self._context
        if self._made is None:
            standing = Standing(context.snapshot.findings)
            self._made = standing, NodeStates(context.snapshot, standing)
        standing, nodes = self._made
        match place.of:
            case Channel():
                return standing.channel(place.of)
            case Topic():
                return standing.whole_topic(place.of)
            case Node():
                return nodes.own(place.target)
            case Open():
                return _INCIDENT_STATES.get(place.of.incident.severity)
            case None:
                return None


def _href(links: Links, place: Place) -> str:
    match place.kind:
        case Kind.TOPIC:
            return links.topic(place.topic)
        case Kind.CHANNEL:
            return links.channel(place.topic, place.channel)
        case Kind.NODE:
            return links.node(place.target)
        case Kind.CONSUMER:
            return links.to("/consumers", group="none", filter=place.name)
        case Kind.TASK:
            return links.to("/jobs/task", name=place.name)
        case Kind.INCIDENT:
            return links.incident(place.target)
        case _:
            return links.to(place.target)


def _has_history(place: Place) -> bool:
    return isinstance(place.of, Topic) and any(row.has_log for row in place.of.nodes)


def short(text: str) -> str:
    return text if len(text) <= _MOST_IN_A_NOTE else f"{text[:_MOST_IN_A_NOTE]}…"
