package recipes

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// setQuota has the servers refuse more than count znodes below path, itself included.
func setQuota(t testing.TB, raw *zk.Conn, path string, count int) {
	t.Helper()
	at := "/zookeeper/quota"
	for part := range strings.SplitSeq(path[1:], "/") {
		at += "/" + part
		if _, err := raw.Create(at, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatalf("Create(%s) = %v", at, err)
		}
	}
	limits := fmt.Sprintf("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=%d", count)
	for name, data := range map[string]string{"zookeeper_stats": "count=0,bytes=0", "zookeeper_limits": limits} {
		if _, err := raw.Create(at+"/"+name, []byte(data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatalf("Create(%s) = %v", name, err)
		}
	}
}

// A refusal with a code that the client library does not know concerns the write
// that it names. It is told at once, and hurries along what shares its Multi.
func TestQuotaRefusesOneWriteOfABatch(t *testing.T) {
	t.Parallel()
	servers := []string{testserver.StartZooKeeper(t, testserver.WithConfig("enforceQuota=true")).Addr()}
	cfg := config(t, servers...)
	c := open(t, cfg)
	raw := rawConn(t, servers)
	full, free := queue.MustNew(c, "/full"), queue.MustNew(c, "/free")
	for _, q := range []*queue.Queue{full, free} {
		if _, err := q.Offer(bounded(t), []byte("first")); err != nil {
			t.Fatal(err)
		}
	}
	setQuota(t, raw, cfg.Chroot+"/full", 2)

	_, err := full.Offer(bounded(t), []byte("second"))
	var doubt *queue.InDoubtError
	if !errors.Is(err, driver.ErrUnavailable) || errors.As(err, &doubt) {
		t.Errorf("Offer() beyond a quota = %v, want a refusal", err)
	}
	if want := "quota is exceeded"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), cfg.Chroot+"/full") {
		t.Errorf("Offer() beyond a quota = %q, want it to name the path and say %q", err, want)
	}

	// Writes of the same moment share a Multi, and the others are applied.
	var writes sync.WaitGroup
	for i := range 9 {
		path, want := fmt.Sprintf("%s/free/w%d", cfg.Chroot, i), session.Applied
		if i%3 == 1 {
			path, want = fmt.Sprintf("%s/full/w%d", cfg.Chroot, i), session.Refused
		}
		writes.Go(func() {
			if r := sessionOf(c).Session.Writes.Do(&zk.CreateRequest{Path: path, Acl: clientOf(c).ACL}); r.Outcome != want {
				t.Errorf("create %s: %+v, want outcome %d", path, r, want)
			}
		})
	}
	writes.Wait()

	// The parent of a line is made by a request of its own.
	create(t, raw, cfg.Chroot+"/none", 0)
	setQuota(t, raw, cfg.Chroot+"/none", 1)
	var wg sync.WaitGroup
	for name, ask := range map[string]func() error{
		"Offer": func() error { _, err := queue.MustNew(c, "/none/q").Offer(bounded(t), nil); return err },
		"Save":  func() error { return MustNewRegister(c, "/none/r").Save(bounded(t), nil, 0) },
		"TryAcquire": func() error {
			_, err := MustNewMutex(c, "/none/m").TryAcquire(bounded(t))
			return err
		},
	} {
		wg.Go(func() {
			if err := ask(); err == nil || !strings.Contains(err.Error(), "quota is exceeded") {
				t.Errorf("%s() below a parent beyond its quota = %v, want that said at once", name, err)
			}
		})
	}
	wg.Go(func() {
		cfg := cfg
		cfg.Home = "/none/base"
		if _, err := zookeeper.Open(bounded(t), cfg); err == nil || !strings.Contains(err.Error(), "quota is exceeded") {
			t.Errorf("zookeeper.Open() below a parent beyond its quota = %v, want that said at once", err)
		}
	})
	wg.Wait()
	if err := c.Locker().Ping(bounded(t)); err != nil {
		t.Errorf("Ping() = %v, want the session unharmed", err)
	}
}
