# Trains a machine when its cases, rubric or graders changed, and only then. In a Makefile:
#   include hooks/machine.mk
# then `make train-NAME`. A clone or a switch of branches trains nothing: contents are compared, not times.
# What the gate said no to is answered too, and not tried again until something changes.

TRAIN_TRIALS ?= 6
TRAIN ?= machine-run NAME --cases cases.jsonl --trials $(TRAIN_TRIALS) | machine-grade | machine-sft \
  | machine-gate | machine-commit

train-%:
	@set -e; \
	stamp=$$(git rev-parse --git-path machine-trained)/$*; \
	now=$$(cd machines/$* && cat cases.jsonl rubric.toml *.py | git hash-object --stdin); \
	if [ "$$(cat "$$stamp" 2>/dev/null)" = "$$now" ]; then echo "$*: nothing changed since it was trained"; exit 0; fi; \
	code=0; bash -o pipefail -c '$(subst NAME,$*,$(TRAIN))' || code=$$?; \
	[ $$code -le 1 ] || exit $$code; \
	mkdir -p "$$(dirname "$$stamp")"; echo "$$now" >"$$stamp"; \
	if [ $$code = 1 ]; then echo "$*: trained, and not better: nothing was committed"; fi
