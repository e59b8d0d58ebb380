#!/usr/bin/env bash
# Compares the exported Go names of the modules in go.work with those of the last tag before HEAD, with apidiff at the given
# version. It exits 1 for an incompatible change. Below v1.0.0 such a change is allowed if the
# changelog has a section "Incompatible changes" under Unreleased. If there is no tag, it says so and
# exits 0. docs/upgrading.md has the policy.
set -euo pipefail

go=${GO:-go}
version=$1

if ! tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
	echo "apicheck: there is no tag yet, so there is nothing to compare with"
	exit 0
fi

tool=$PWD/bin/apidiff-$version
if [[ ! -x $tool ]]; then
	GOBIN=$PWD/bin/build "$go" install "golang.org/x/exp/cmd/apidiff@$version"
	mv bin/build/apidiff "$tool"
	rmdir bin/build
fi

module=$("$go" list -m)
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/tree" >/dev/null 2>&1 || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/tree" "$tag"
(cd "$dir/tree" && "$tool" -m -w "$dir/old" "$module")

# What is not for users may change: the sample, tests, and the suites for backends.
changes=$("$tool" -m -incompatible "$dir/old" "$module" |
	{ grep -vE '^- (\./)?(example-payments|examples|tests|idem/idemtest|middleware/exchange/exchangetest|middleware/grpc/grpctest)\b' || true; })
if [[ -z $changes ]]; then
	echo "apicheck: compatible with $tag"
	exit 0
fi
echo "apicheck: incompatible with $tag:"
echo "$changes"
if [[ $tag == v0.* ]] && sed -n '/^## Unreleased/,/^## v/p' CHANGELOG.md | grep -q '^### Incompatible changes'; then
	echo "apicheck: allowed below v1.0.0, because the changelog has \"Incompatible changes\""
	exit 0
fi
exit 1
