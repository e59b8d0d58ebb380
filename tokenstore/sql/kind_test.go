package sqlstore

import "testing"

// Every database has all that the store and joined mode call without asking.
func TestKindsOfDialectsAreComplete(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		if k.Dialect == nil || k.check == nil || k.join == nil || k.folder == "" {
			t.Errorf("%s: %+v has no Dialect, check, join or folder", name, k)
		}
	}
}
