package recipes

import (
	"os"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// The places of other libraries are nobody's places here, so that a path that both
// use has two holders. The documentation warns of that.
func TestPlacesOfOtherLibrariesAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	cfg := r.straight()
	raw := rawConn(t, cfg.Servers)
	m := MustNewMutex(r.Client, "/shared")
	first, err := m.Acquire(bounded(t)) // makes the path
	if err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string]string{
		"Curator":      "_c_1b9b6dd2-1c4c-4f27-9f0f-2f3cfe7d8c11-lock-",
		"kazoo":        "8f14e45fceea167a5a36dedd4bea2543__lock__",
		"go-zookeeper": "_c_8f14e45fceea167a5a36dedd4bea2543-lock-",
	} {
		if _, err := raw.Create(cfg.Chroot+"/shared/"+prefix, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	recipetest.Release(r, first)
	second, err := m.TryAcquire(bounded(t)) // behind all three
	if err != nil {
		t.Fatalf("TryAcquire() = %v, want the lock", err)
	}
	if p := participants(t, m); len(p) != 1 {
		t.Errorf("Participants() = %+v, want one", p)
	}
	recipetest.Release(r, second)
	for _, page := range []string{"doc.go", "../../../docs/operations.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(strings.NewReplacer("//", "", "*", "").Replace(string(text))), " ")
		for _, want := range []string{"Curator, kazoo or go-zookeeper", "two holders"} {
			if !strings.Contains(words, want) {
				t.Errorf("%s does not say %q", page, want)
			}
		}
	}
}
