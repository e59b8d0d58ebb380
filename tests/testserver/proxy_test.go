package testserver_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// bed is a client that goes through a proxy and one that does not.
type bed struct {
	proxy   *testserver.Proxy
	through *zk.Conn
	direct  *zk.Conn
	path    string
}

func setup(t *testing.T) bed {
	t.Helper()
	t.Parallel()
	hosts := testserver.SharedZooKeeper(t)
	p := testserver.StartZooKeeperProxy(t, hosts[0])
	return bed{
		proxy:   p,
		through: connect(t, 20*time.Second, p.Addr()),
		direct:  connect(t, 20*time.Second, hosts...),
		path:    testserver.Chroot(t),
	}
}

func (b bed) createAsync() <-chan error {
	done := make(chan error, 1)
	go func() { done <- create(b.through, b.path) }()
	return done
}

func TestProxy_DropNextReplyHasBeenApplied(t *testing.T) {
	b := setup(t)
	dropped := b.proxy.DropNextReply(testserver.Op(testserver.OpMulti))
	if err := create(b.through, b.path); err != nil {
		t.Fatalf("Create, which is no multi, = %v", err)
	}
	pending(t, "drop", dropped)
	_, err := b.through.Multi(&zk.CreateRequest{Path: b.path + "/m", Acl: zk.WorldACL(zk.PermAll)})
	if !lost(err) {
		t.Fatalf("Multi = %v, want %v", err, zk.ErrConnectionClosed)
	}
	happens(t, "drop", dropped)
	mustExist(t, b.direct, b.path+"/m", true)

	// The fault is over: the same session goes on.
	eventually(t, "reconnect", func() bool { return b.through.State() == zk.StateHasSession })
	mustExist(t, b.through, b.path, true)
}

func TestProxy_DropNextRequestHasNotBeenApplied(t *testing.T) {
	b := setup(t)
	dropped := b.proxy.DropNextRequest(testserver.Op(testserver.OpCreate))
	if err := create(b.through, b.path); !lost(err) {
		t.Fatalf("Create = %v, want %v", err, zk.ErrConnectionClosed)
	}
	happens(t, "drop", dropped)
	mustExist(t, b.direct, b.path, false)
}

func TestProxy_HoldNext(t *testing.T) {
	match := testserver.All(testserver.Op(testserver.OpCreate), testserver.Contains("idemkeeper"))
	t.Run("released is delivered", func(t *testing.T) {
		b := setup(t)
		h := b.proxy.HoldNext(match)
		done := b.createAsync()
		happens(t, "hold", h.Held())
		mustExist(t, b.direct, b.path, false)
		h.Release()
		h.Release()
		if err := <-done; err != nil {
			t.Fatalf("Create = %v", err)
		}
	})
	t.Run("cut is lost, with what is behind it", func(t *testing.T) {
		b := setup(t)
		first, second := b.proxy.HoldNext(match), b.proxy.HoldNext(match)
		done := b.createAsync()
		happens(t, "first hold", first.Held())
		other := make(chan error, 1)
		go func() { other <- create(b.through, b.path+"-other") }()
		happens(t, "second hold", second.Held())
		b.proxy.Cut()
		if err := errors.Join(<-done, <-other); !lost(err) {
			t.Fatalf("Create = %v, want %v", err, zk.ErrConnectionClosed)
		}
		mustExist(t, b.direct, b.path, false)
		mustExist(t, b.direct, b.path+"-other", false)
	})
	t.Run("reply held has been applied", func(t *testing.T) {
		b := setup(t)
		h := b.proxy.HoldNextReply(match)
		done := b.createAsync()
		happens(t, "hold", h.Held())
		mustExist(t, b.direct, b.path, true)
		h.Release()
		if err := <-done; err != nil {
			t.Fatalf("Create = %v", err)
		}
	})
}

func TestProxy_FreezeDeliversLate(t *testing.T) {
	b := setup(t)
	b.proxy.Freeze(testserver.ToClient)
	done := b.createAsync()
	eventually(t, "znode", func() bool {
		found, _, _ := b.direct.Exists(b.path)
		return found
	})
	b.proxy.Restore()
	if err := <-done; err != nil {
		t.Fatalf("Create = %v", err)
	}
}

func TestProxy_BlackHole(t *testing.T) {
	for name, tc := range map[string]struct {
		dir     testserver.Direction
		applied bool
	}{
		"towards the server": {testserver.ToServer, false},
		"towards the client": {testserver.ToClient, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.proxy.BlackHole(tc.dir)
			done := b.createAsync()
			eventually(t, "lost frame", func() bool { return b.proxy.Swallowed() > 0 })
			b.proxy.Restore() // cuts the connection, which has a gap now
			err := <-done
			if !lost(err) {
				t.Fatalf("Create = %v, want %v", err, zk.ErrConnectionClosed)
			}
			mustExist(t, b.direct, b.path, tc.applied)
		})
	}
}

func TestProxy_RefuseAndStall(t *testing.T) {
	b := setup(t)
	b.proxy.Refuse(true)
	if err := create(b.through, b.path); err != nil {
		t.Fatalf("Create over a present connection = %v", err)
	}
	if _, err := net.Dial("tcp", b.proxy.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("Dial = %v, want %v", err, syscall.ECONNREFUSED)
	}
	b.proxy.Refuse(false)

	b.proxy.StallAccept(true)
	conn, err := net.Dial("tcp", b.proxy.Addr())
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("srvr")); err != nil {
		t.Fatalf("Write = %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read from a stalled proxy = %v, want %v", err, os.ErrDeadlineExceeded)
	}
	b.proxy.Restore()
	_ = conn.SetReadDeadline(time.Now().Add(testserver.StartTimeout))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatalf("Read after Restore = %v", err)
	}
}

func TestProxy_HalfOpenHidesTheServersDeath(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	p := testserver.StartRedisProxy(t, r.Addr())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatalf("Write = %v", err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("+PONG\r\n"))); err != nil {
		t.Fatalf("Read = %v", err)
	}
	p.BlackHole(testserver.ToClient)
	r.Kill()
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read = %v, want %v", err, os.ErrDeadlineExceeded)
	}
	p.Restore()
	_ = conn.SetReadDeadline(time.Now().Add(testserver.StartTimeout))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read after Restore = %v, want the end of the connection", err)
	}
}

func TestProxy_RedisDropNextReplyInAPipeline(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	p := testserver.StartRedisProxy(t, r.Addr())
	c := client(t, "redis://"+p.Addr()) // shows that the handshake in RESP3 passes
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("PING = %v", err)
	}
	// go-redis fails a whole pipeline at once, so the order of replies is looked
	// at on a plain connection.
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	defer conn.Close()
	dropped := p.DropNextReply(testserver.Contains("order:2"))
	if _, err := io.WriteString(conn, "SET order:1 v\r\n*3\r\n$3\r\nSET\r\n$7\r\norder:2\r\n$1\r\nv\r\nPING\r\n"); err != nil {
		t.Fatalf("Write = %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testserver.StartTimeout))
	if got, _ := io.ReadAll(conn); string(got) != "+OK\r\n" {
		t.Fatalf("replies = %q, want the first one only", got)
	}
	happens(t, "drop", dropped)
	if got, err := r.Do("EXISTS", "order:1", "order:2"); err != nil || got[0] != "2" {
		t.Fatalf("EXISTS = %v, %v, want 2", got, err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("PING afterwards = %v", err)
	}
}

func TestProxy_TCPDropNextReply(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	p := testserver.StartTCPProxy(t, r.Addr())
	c := client(t, "redis://"+p.Addr())
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("PING = %v", err)
	}
	dropped := p.DropNextReply(testserver.Contains("raw-key"))
	if err := c.Set(t.Context(), "raw-key", "v", 0).Err(); err == nil {
		t.Fatal("SET = nil, want a lost reply")
	}
	happens(t, "drop", dropped)
	if got, err := r.Do("GET", "raw-key"); err != nil || got[0] != "v" {
		t.Fatalf("GET = %v, %v, want v", got, err)
	}
}

func TestProxy_LagShowsThePastUntilATransaction(t *testing.T) {
	b := setup(t)
	if err := create(b.direct, b.path); err != nil {
		t.Fatalf("Create = %v", err)
	}
	b.proxy.Lag(testserver.Contains(b.path))
	mustExist(t, b.through, b.path, true) // over the connection from before
	b.proxy.Cut()
	eventually(t, "reads from the past", func() bool {
		found, _, err := b.through.Exists(b.path)
		return err == nil && !found
	})
	if _, _, err := b.through.Get(b.path); !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("Get = %v, want %v", err, zk.ErrNoNode)
	}
	if n := b.proxy.Lagged(); n < 2 {
		t.Errorf("Lagged() = %d, want 2 at least", n)
	}
	if _, err := b.through.Multi(&zk.SetDataRequest{Path: b.path, Version: -1}); err != nil {
		t.Fatalf("Multi = %v", err)
	}
	mustExist(t, b.through, b.path, true)
}

func TestProxy_SlowDeliversLate(t *testing.T) {
	b := setup(t)
	const late = 200 * time.Millisecond
	b.proxy.Slow(late)
	began := time.Now()
	if err := create(b.through, b.path); err != nil {
		t.Fatalf("Create = %v", err)
	}
	if took := time.Since(began); took < 2*late {
		t.Errorf("Create took %v, want %v at least, %v in each direction", took, 2*late, late)
	}
	b.proxy.Slow(0)
	mustExist(t, b.through, b.path, true)
}

// TestPgBouncerOutlivesClientsThatCancel: each asks to cancel a statement, and its connection is cut meanwhile.
func TestPgBouncerOutlivesClientsThatCancel(t *testing.T) {
	pooler := testserver.StartPgBouncer(t, testserver.SharedPostgres(t))
	client, err := pgx.Connect(t.Context(), pooler.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	conn := client.PgConn()
	running := conn.Exec(t.Context(), "SELECT pg_sleep(0.3)")
	request := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 16, 4, 210, 22, 46}, conn.PID())
	request = append(request, conn.SecretKey()...)
	for range 50 {
		other, err := net.Dial("tcp", conn.Conn().RemoteAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Write(request); err != nil {
			t.Fatal(err)
		}
		_ = other.(*net.TCPConn).SetLinger(0)
		other.Close()
	}
	if err := running.Close(); err != nil {
		t.Errorf("Exec() = %v, want nil, because requests to cancel are lost", err)
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
}
