package tests

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"
)

func ringKey(id string) string {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	return id + "=" + base64.StdEncoding.EncodeToString(secret[:])
}

// Stored responses are encrypted: nothing of them can be read in Redis, other
// instances replay them, and a new key is brought in without losing any.
func TestStoredResponsesAreEncrypted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	k1, k2 := ringKey("k1"), ringKey("k2")
	one := s.start("one", withFlags("--response-keys", k1))
	before := payBefore(t, one)
	w := &watched{system: s}
	content := w.redisContent()
	for _, p := range before {
		if strings.Contains(content, p.ID) {
			t.Errorf("Redis holds payment %s in plain text", p.ID)
		}
	}
	if !strings.Contains(content, keyID(keyFor(transports[0], "before")).String()) {
		t.Error("the look into Redis shows nothing that is there")
	}

	rotated := s.start("rotated", withFlags("--response-keys", k2+","+k1))
	next := s.start("without the old key", withFlags("--response-keys", k2))
	none := s.start("without keys")
	for _, via := range transports {
		key := keyFor(via, "before")
		wantReplay(t, "repeat after the rotation", rotated.client(via).pay(key, amount, key), before[via])
		wantRefusal(t, "repeat without the key", next.client(via).pay(key, amount, key), "unavailable")
		wantRefusal(t, "repeat without any", none.client(via).pay(key, amount, key), "result-unavailable")
		wantOnePayment(t, one.client(via), key)

		fresh := keyFor(via, "fresh")
		a := wantPaidOnce(t, "fresh key", rotated.client(via), fresh)
		wantReplay(t, "its repeat", next.client(via).pay(fresh, amount, fresh), a.payment)
	}

	show := []string{"--json", "record", "show", "--scope", "merchant_demo", "--body", keyFor(transports[0], "before")}
	if out, code := s.outputOf(append([]string{"--response-keys", k1}, show...)...); code != 0 || !strings.Contains(out, before[transports[0]].ID) {
		t.Errorf("record show with the key = %d %q, want the payment", code, out)
	}
	for _, keys := range [][]string{nil, {"--response-keys", k2}} {
		if out, code := s.outputOf(append(keys, show...)...); code != 0 || strings.Contains(out, before[transports[0]].ID) || !strings.Contains(out, `"completed"`) {
			t.Errorf("record show without the key = %d %q, want the record and no payment", code, out)
		}
	}
}

// Keyed fingerprints hold over both transports while their keys change, in Redis and in the markers
// of ZooKeeper. An instance without the key cannot tell whether a request is the same, and runs nothing.
func TestFingerprintKeysAreRotated(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	k1, k2 := ringKey("k1"), ringKey("k2")
	const flag = "--fingerprint-keys"
	one := s.start("one", withMarkers(), withFlags(flag, k1))
	before := payBefore(t, one)
	rotated := s.start("rotated", withMarkers(), withFlags(flag, k2+","+k1))
	next := s.start("without the old key", withMarkers(), withFlags(flag, k2))
	for _, via := range transports {
		key := keyFor(via, "before")
		wantReplay(t, "repeat after the rotation", rotated.client(via).pay(key, amount, key), before[via])
	}
	for _, lost := range []bool{false, true} {
		if lost {
			s.flushRedis(t)
		}
		for _, via := range transports {
			key := keyFor(via, "before")
			wantRefusal(t, "repeat without the key", next.client(via).pay(key, amount, key), "unavailable")
			wantRefusal(t, "another amount without the key", next.client(via).pay(key, amount+1, key), "unavailable")
			wantRefusal(t, "another amount after the rotation", rotated.client(via).pay(key, amount+1, key), "key-reused")
			if lost {
				wantRefusal(t, "repeat after the loss", rotated.client(via).pay(key, amount, key), "result-unavailable")
			}
			wantOnePayment(t, one.client(via), key)
		}
	}
}

// An ensemble whose znodes are protected serves those who know the password,
// and a stranger cannot unlock.
func TestProtectedLocks(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const auth = "payments:s3cret"
	in := s.start("one", withFlags("--zookeeper-auth", auth), withLatency(victimLatency), withMarkers())
	all := in.startPaymentsUpTo(t, "protected", "at=before-ledger")
	conn := s.zooKeeper()
	for _, r := range all {
		if err := conn.Delete(s.lockPath(r.key), -1); err == nil {
			t.Errorf("a stranger has unlocked %s", r.key)
		}
		wantPayment(t, "payment", <-r.done, wantOnePayment(t, in.client(r.via), r.key))
	}
	// Locks of others are theirs, idemctl's included.
	if out, code := s.outputOf("--zookeeper-auth", auth, "lock", "/jobs/x", "--", "true"); code != 0 {
		t.Errorf("idemctl lock = %d %q, want 0", code, out)
	}
}
