package idemctl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Eight shells add one to the number in a file, under a lock, while the leader
// of the ensemble is killed twice. No number is written twice: none is lost.
func TestShellsCountWhileLeadersAreKilled(t *testing.T) {
	t.Parallel()
	const shells, each = 8, 8
	e := testserver.StartEnsemble(t, 3)
	r := kit.ZooKeeperOnly(t, e.Hosts()).WithShortSession()
	file := filepath.Join(t.TempDir(), "count")
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*kit.Process
	for i := range shells {
		lock := r.Idemctl("lock", "--timeout", "30s", "/jobs/count", "--", "sh", "-c", `
			read -r n < "$0"; sleep 0.02; echo $((n + 1)) > "$0.$$" && mv "$0.$$" "$0" && echo "wrote $((n + 1))"`, file)
		shell := exec.Command("bash", append([]string{"-c", `
			done=0
			while [ $done -lt ` + strconv.Itoa(each) + ` ]; do
				out=$("$0" "$@" 2>> "$ERRORS"); code=$?
				echo "exit $code $out"
				case $code in
				0) done=$((done + 1)) ;;
				1 | 75) ;; # try again
				*) exit 1 ;;
				esac
			done`}, lock.Args...)...)
		shell.Env = slices.Concat(lock.Env, []string{"ERRORS=" + file + ".errors"})
		all = append(all, kit.StartProcess(t, fmt.Sprintf("shell %d", i), shell))
	}
	counted := func() (n int) {
		for _, in := range all {
			n += in.Stdout.Count("exit 0 ")
		}
		return n
	}
	for _, after := range []int{shells, 3 * shells} {
		kit.Eventually(t, fmt.Sprintf("%d increments", after), func() error {
			if counted() < after {
				return kit.ErrNotYet
			}
			return nil
		})
		leader := e.Leader()
		leader.Kill()
		t.Logf("killed the leader after %d increments", counted())
		leader.Restart()
	}

	succeeded, others := map[string]int{}, 0
	for _, in := range all {
		if got := in.WaitExit(t); got.Code != 0 {
			t.Errorf("%s has ended with %d: %s%s", in.Name, got.Code, got.Stdout, got.Stderr)
		}
		for line := range strings.Lines(in.Stdout.All()) {
			if number, ok := strings.CutPrefix(strings.TrimSpace(line), "exit 0 wrote "); ok {
				succeeded[number]++
			} else {
				others++
				t.Logf("%s: %s", in.Name, line)
			}
		}
	}
	for number, times := range succeeded {
		if times > 1 {
			t.Errorf("%s was written %d times", number, times)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(text)))
	// A run that failed may have written before it did, which it cannot know.
	if err != nil || counted() != shells*each || count < counted() || count > counted()+others {
		t.Errorf("the count is %q (%v) after %d increments and %d runs that failed", text, err, counted(), others)
	}
	if messages, _ := os.ReadFile(file + ".errors"); len(messages) > 0 {
		t.Logf("what the others said:\n%s", messages)
	}
	t.Logf("count %d, %d increments, %d runs that failed", count, counted(), others)
}
