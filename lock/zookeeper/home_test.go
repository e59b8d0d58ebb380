package zookeeper

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Two clients find a root without a domain. The second write of it is refused, and its client
// takes the domain of the first.
func TestTwoFirstClientsAgree(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	slow := cfg
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	slow.Servers = []string{proxy.Addr()}
	write := proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/domain")))
	opened := make(chan *Client, 1)
	go func() {
		c, err := Open(bounded(t), slow)
		if err != nil {
			t.Errorf("Open() = %v", err)
		}
		opened <- c
	}()
	await(t, "the write of a domain", write.Held())
	first := open(t, cfg)
	write.Release()
	second := <-opened
	if second == nil {
		return
	}
	if second.Domain() != first.Domain() {
		t.Errorf("domains %q and %q, want the same", first.Domain(), second.Domain())
	}
	if err := second.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// Clients that use the same locks have the same home, and so the same domain.
func TestHomeHasToMatch(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	one := open(t, cfg)
	same := open(t, cfg)
	if one.Domain() != same.Domain() {
		t.Errorf("domains %q and %q with one home", one.Domain(), same.Domain())
	}
	other := cfg
	other.Home = "/other"
	c, err := Open(bounded(t), other)
	if err == nil {
		c.Abandon()
		t.Fatal("Open() with another home for the same locks succeeded")
	}
	if !errors.Is(err, ErrHomeMismatch) || errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), cfg.Chroot+"/idem") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open() = %q, want one line that wraps %q and names the home in use", err, ErrHomeMismatch)
	}
	// Other locks may have another home, also the same locks by another chroot.
	other.Root = "/other/lock"
	if open(t, other).Domain() == one.Domain() {
		t.Error("other locks are of the same domain")
	}
	chroot := cfg
	chroot.Chroot, chroot.Root, chroot.Home = "", cfg.Chroot+"/lock", cfg.Chroot+"/idem"
	open(t, chroot)
}
