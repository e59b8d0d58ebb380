package sqlstore_test

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestStore(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		runStore(t, b.store(t, b.migrated(t)))
	})
}

// runStore runs the suite on one store, which it empties before each test, because the start of a store takes longer
// than most of them.
func runStore(t *testing.T, s *store) {
	t.Helper()
	idemtest.RunStore(t, idemtest.StoreHarness{
		New: func(tb testing.TB) driver.Store {
			tb.Helper()
			for _, table := range []string{"records", "domains", "decisions", "notes"} {
				mustExec(tb, s.write, s.sql("DELETE FROM {"+table+"}"))
			}
			return s
		},
		Damage: damage,
	})
}

// damages are the changes to a row that stand for each damage.
var damages = map[idemtest.Damage]string{
	idemtest.NewerRecord:      "form = form + 1",
	idemtest.OlderRecord:      "form = form - 1",
	idemtest.EmptyRecord:      "form = 0, state = 0, attempt = 0, fingerprint = '', nonce = '', domain = '', response = NULL",
	idemtest.CutRecord:        "fingerprint = substr(fingerprint, 1, 20)",
	idemtest.GarbageRecord:    "state = 77, kind = 99, attempt = -5",
	idemtest.CutResponse:      "response = substr(response, 1, length(response) - 1)",
	idemtest.EmptyResponse:    "response = substr(response, 1, 0)",
	idemtest.ExtendedResponse: "response = response || response",
	idemtest.ChangedResponse:  "",
}

func damage(tb testing.TB, of driver.Store, id driver.KeyID, d idemtest.Damage) {
	tb.Helper()
	s, ok := of.(*store)
	if !ok {
		tb.Fatalf("%T is no store of these tests", of)
	}
	change := damages[d]
	switch {
	case d == idemtest.EmptyRecord && s.dialect == dialect.SQLite:
		change = "form = 0, state = 0, attempt = 0, fingerprint = x'', nonce = x'', domain = x'', response = NULL"
	case d == idemtest.ExtendedResponse && s.dialect == dialect.MySQL:
		change = "response = concat(response, response)"
	case d == idemtest.ExtendedResponse && s.dialect == dialect.SQLite:
		change = "response = CAST(response || response AS BLOB)"
	case d == idemtest.ChangedResponse:
		response := get[[]byte](tb, s.read, s.sql("SELECT response FROM {records} WHERE k = ?"), id[:])
		response[len(response)/2] ^= 1
		mustExec(tb, s.write, s.sql("UPDATE {records} SET response = ? WHERE k = ?"), response, id[:])
		return
	}
	mustExec(tb, s.write, s.sql("UPDATE {records} SET "+change+" WHERE k = ?"), id[:])
}
