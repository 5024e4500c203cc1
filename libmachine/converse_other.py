"""Counterparts under one purse: what every command that runs machines shares."""

from __future__ import annotations

from libmachine import console, env
from libmachine.converse import Facing
from libmachine.errors import MachineError
from libmachine.harness import choose
from libmachine.load import Loaded, find, load_folder
from libmachine.purse import Purse


class Others:
    """Finds and serves the counterparts of machines. Their calls are billed to them, on the one ledger."""

    def __init__(self, purse: Purse) -> None:
        self.purse = purse
        self._facing: dict[str, Facing] = {}

    def of(self, machine: Loaded) -> Facing | None:
        """Who a machine talks with, None if its cases are no conversations.

        It is served as its own files say, or by MACHINE_COUNTERPART_MODEL. Raises MachineError if
        there is no such machine.
        """
        rule = machine.counterpart
        if rule is None:
            return None
        if rule.machine not in self._facing:
            project = self.purse.project
            try:
                other = load_folder(find(rule.machine, project.places))
            except MachineError as error:
                raise MachineError(f"counterpart of '{machine.name}': {error}") from None
            model = env.get("MACHINE_COUNTERPART_MODEL")
            engine = choose.engine(
                other.model, None, model, None, console.say, project.trained, store=project.store
            )
            self._facing[rule.machine] = Facing(rule, other, self.purse.bill(engine, "run", other.name))
        known = self._facing[rule.machine]
        return Facing(rule, known.machine, known.engine)

    def close(self) -> None:
        """Let go of the engines."""
        for facing in self._facing.values():
            facing.engine.close()
