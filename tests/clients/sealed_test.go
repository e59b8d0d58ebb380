package clients

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// ringKey is a new key for sealed responses, as the flags take it.
func ringKey(id string) string {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	return id + "=" + base64.StdEncoding.EncodeToString(secret[:])
}

// Stored responses are encrypted: nothing of them can be read in Redis, other
// instances replay them, and a new key is brought in without losing any.
func TestStoredResponsesAreEncrypted(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	k1, k2 := ringKey("k1"), ringKey("k2")
	one := s.Start("one", kit.WithFlags("--response-keys", k1))
	before := kit.PayBefore(t, one)
	w := &watched{System: s}
	content := w.redisContent()
	for _, p := range before {
		if strings.Contains(content, p.ID) {
			t.Errorf("Redis holds payment %s in plain text", p.ID)
		}
	}
	if !strings.Contains(content, kit.KeyID(kit.KeyFor(kit.Transports[0], "before")).String()) {
		t.Error("the look into Redis shows nothing that is there")
	}

	rotated := s.Start("rotated", kit.WithFlags("--response-keys", k2+","+k1))
	next := s.Start("without the old key", kit.WithFlags("--response-keys", k2))
	none := s.Start("without keys")
	for _, via := range kit.Transports {
		key := kit.KeyFor(via, "before")
		kit.WantReplay(t, "repeat after the rotation", rotated.Client(via).Pay(key, kit.Amount, key), before[via])
		kit.WantRefusal(t, "repeat without the key", next.Client(via).Pay(key, kit.Amount, key), "unavailable")
		kit.WantRefusal(t, "repeat without any", none.Client(via).Pay(key, kit.Amount, key), "result-unavailable")
		kit.WantOnePayment(t, one.Client(via), key)

		fresh := kit.KeyFor(via, "fresh")
		a := kit.WantPaidOnce(t, "fresh key", rotated.Client(via), fresh)
		kit.WantReplay(t, "its repeat", next.Client(via).Pay(fresh, kit.Amount, fresh), a.Payment)
	}

	show := []string{"--json", "record", "show", "--scope", "merchant_demo", "--body", kit.KeyFor(kit.Transports[0], "before")}
	if out, code := s.OutputOf(append([]string{"--response-keys", k1}, show...)...); code != 0 || !strings.Contains(out, before[kit.Transports[0]].ID) {
		t.Errorf("record show with the key = %d %q, want the payment", code, out)
	}
	for _, keys := range [][]string{nil, {"--response-keys", k2}} {
		if out, code := s.OutputOf(append(keys, show...)...); code != 0 || strings.Contains(out, before[kit.Transports[0]].ID) || !strings.Contains(out, `"completed"`) {
			t.Errorf("record show without the key = %d %q, want the record and no payment", code, out)
		}
	}
}

// Keyed fingerprints hold over both transports while their keys change, in Redis and in the markers
// of ZooKeeper. An instance without the key cannot tell whether a request is the same, and runs nothing.
func TestFingerprintKeysAreRotated(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	k1, k2 := ringKey("k1"), ringKey("k2")
	const flag = "--fingerprint-keys"
	one := s.Start("one", kit.WithMarkers(), kit.WithFlags(flag, k1))
	before := kit.PayBefore(t, one)
	rotated := s.Start("rotated", kit.WithMarkers(), kit.WithFlags(flag, k2+","+k1))
	next := s.Start("without the old key", kit.WithMarkers(), kit.WithFlags(flag, k2))
	for _, via := range kit.Transports {
		key := kit.KeyFor(via, "before")
		kit.WantReplay(t, "repeat after the rotation", rotated.Client(via).Pay(key, kit.Amount, key), before[via])
	}
	for _, lost := range []bool{false, true} {
		if lost {
			s.FlushRedis(t)
		}
		for _, via := range kit.Transports {
			key := kit.KeyFor(via, "before")
			kit.WantRefusal(t, "repeat without the key", next.Client(via).Pay(key, kit.Amount, key), "unavailable")
			kit.WantRefusal(t, "another amount without the key", next.Client(via).Pay(key, kit.Amount+1, key), "unavailable")
			kit.WantRefusal(t, "another amount after the rotation", rotated.Client(via).Pay(key, kit.Amount+1, key), "key-reused")
			if lost {
				kit.WantRefusal(t, "repeat after the loss", rotated.Client(via).Pay(key, kit.Amount, key), "result-unavailable")
			}
			kit.WantOnePayment(t, one.Client(via), key)
		}
	}
}

// An ensemble whose znodes are protected serves those who know the password,
// and a stranger cannot unlock.
func TestProtectedLocks(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	const auth = "payments:s3cret"
	in := s.Start("one", kit.WithFlags("--zookeeper-auth", auth), kit.WithLatency(kit.VictimLatency), kit.WithMarkers())
	all := in.StartPaymentsUpTo(t, "protected", "at=before-ledger")
	conn := s.ZooKeeper()
	for _, r := range all {
		if err := conn.Delete(s.LockPath(r.Key), -1); err == nil {
			t.Errorf("a stranger has unlocked %s", r.Key)
		}
		kit.WantPayment(t, "payment", <-r.Done, kit.WantOnePayment(t, in.Client(r.Via), r.Key))
	}
	// Locks of others are theirs, idemctl's included.
	if out, code := s.OutputOf("--zookeeper-auth", auth, "lock", "/jobs/x", "--", "true"); code != 0 {
		t.Errorf("idemctl lock = %d %q, want 0", code, out)
	}
}
