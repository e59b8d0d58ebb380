#!/usr/bin/env bash
# Usage: subjects.sh RANGE. Refuses commits whose subject is longer than 72 characters, or that have no
# body where they change code.
set -euo pipefail

bad=0
while read -r commit; do
	subject=$(git log -1 --format=%s "$commit")
	if ((${#subject} > 72)); then
		echo "$commit: the subject has ${#subject} characters, at most 72: $subject"
		bad=1
	fi
	if [[ -z $(git log -1 --format=%b "$commit") ]] && [[ -n $(git diff-tree --no-commit-id --name-only -r "$commit" -- '*.go' '*.lua' '*.sql') ]]; then
		echo "$commit: the body does not say why: $subject"
		bad=1
	fi
done < <(git log --no-merges --format=%H "$1")
exit "$bad"
