package idemtest

import (
	"os"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerInspectTests are about what operators see. A Locker that is no [driver.LockInspector]
// passes them.
var lockerInspectTests = []lockerTest{
	{"HeldBy names the process and the attempt", func(b *lockerBench) {
		in, ok := b.b.(driver.LockInspector)
		if !ok {
			return
		}
		b.wantHolder(in, b.id, nil)
		ctx, cancel := b.bounded()
		defer cancel()
		req := request(b.id)
		lease, err := b.a.TryAcquire(ctx, req)
		if err != nil {
			b.Fatalf("TryAcquire(%s) = %v, want a lease", b.id, err)
		}
		host, err := os.Hostname()
		if err != nil {
			b.Fatal(err)
		}
		b.wantHolder(in, b.id, &driver.Holder{Host: host, PID: os.Getpid(), Nonce: req.Nonce})
		b.wantHolder(in, b.other, nil)
		if domain, err := in.DomainOf(ctx, b.id); domain != lease.Fence().Domain || err != nil {
			b.Errorf("DomainOf(%s) = %q, %v, want %q as in the fence", b.id, domain, err, lease.Fence().Domain)
		}
		b.release(lease)
		b.wantHolder(in, b.id, nil)
	}},
}

// wantHolder asks who holds a lock. nil stands for a free lock.
func (b *lockerBench) wantHolder(in driver.LockInspector, id driver.KeyID, want *driver.Holder) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	got, held, err := in.HeldBy(ctx, id)
	switch {
	case err != nil, held != (want != nil):
		b.Errorf("HeldBy(%s) = %v, %v, %v, want %v", id, got, held, err, want)
	case held && got != *want:
		b.Errorf("HeldBy(%s) = %+v, want %+v", id, got, *want)
	}
}
