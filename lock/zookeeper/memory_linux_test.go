package zookeeper

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// maxPerMarker is what the documentation states a marker costs at most in the
// heap of each server: in MB per million, and so in bytes per marker.
const maxPerMarker = 1000

// What markers cost the servers is part of the decision to use them, so it is
// stated, and what is stated is measured. IDEMKEEPER_TEST_MARKERS is another
// number of them.
func TestMemoryOfMarkers(t *testing.T) {
	t.Parallel()
	n, parents := 4_000, 16 // which is as many below each parent as a million have below all
	if s := os.Getenv("IDEMKEEPER_TEST_MARKERS"); s != "" {
		n, _ = strconv.Atoi(s)
		parents = 4_096
	}
	z := testserver.StartZooKeeper(t)
	cfg := config(t, z.Hosts()...)
	cfg.Chroot, cfg.SessionTimeout = "", 60*time.Second
	l := open(t, cfg).Locker(WithDurableMarkers())
	dir := serverDir(t, z)
	leaveMarkers(t, l, 100*parents, parents) // what the first ones and their parents cost is not for each of them
	before := heapOf(t, l, dir)
	began := time.Now()
	leaveMarkers(t, l, n, parents)
	took := time.Since(began)
	per := float64(heapOf(t, l, dir)-before) / float64(n)
	t.Logf("%d markers of %d bytes, left within %v: %.0f bytes of heap each, that is %.0f MB per million", n, markerSize(t), took, per, per)
	if per < maxPerMarker/10 || per > maxPerMarker {
		t.Errorf("a marker takes %.0f bytes, want at most %d, and some", per, maxPerMarker)
	}
	if os.Getenv("IDEMKEEPER_TEST_MARKERS") == "" {
		return
	}
	z.Kill()
	z.Restart() // takes a snapshot
	snapshots, err := filepath.Glob(filepath.Join(dir, "data", "version-2", "snapshot.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range snapshots {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes, %.0f per marker", filepath.Base(file), info.Size(), float64(info.Size())/float64(n))
	}
	began = time.Now()
	removed := MarkerStats{}
	until(t, "markers removed", func() bool {
		removed, err = l.RemoveMarkers(t.Context(), MarkerRemoval{Retention: 1, PerSecond: 1_000_000})
		return err == nil
	})
	t.Logf("%+v within %v", removed, time.Since(began))
}

// leaveMarkers marks n new keys below so many parents.
func leaveMarkers(t testing.TB, l *Locker, n, parents int) {
	t.Helper()
	var wg sync.WaitGroup
	turns := make(chan struct{})
	for range 128 {
		wg.Go(func() {
			for range turns {
				id := newID()
				parent := rand.N(parents)
				id[0], id[1] = byte(parent>>4), byte(parent<<4)|id[1]&0xf
				lease, err := l.TryAcquire(t.Context(), request(id))
				if err != nil {
					t.Error(err)
					continue
				}
				lease.(*Lease).MarkOnRelease(completed())
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	wg.Wait()
}

func markerSize(t testing.TB) int {
	data, err := completed().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}

// serverDir is the working directory of a server of the harness.
func serverDir(t testing.TB, z *testserver.ZooKeeper) string {
	t.Helper()
	conf, err := z.Command("conf")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^dataDir=(.*)/data/version-2$`).FindStringSubmatch(conf)
	if found == nil {
		t.Fatalf("no data directory in %q", conf)
	}
	return found[1]
}

// heapOf is the size of all live objects in a server's heap, from the histogram
// that HotSpot gives to who attaches to it, after a full collection.
func heapOf(t testing.TB, l *Locker, dir string) int64 {
	t.Helper()
	// The server keeps the last 500 transactions, however large. So that those
	// are small ones:
	for range 600 {
		if err := l.Ping(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	histogram := attach(t, processIn(t, dir), "inspectheap", "-live")
	total := regexp.MustCompile(`(?m)^Total\s+\d+\s+(\d+)`).FindStringSubmatch(histogram)
	if total == nil {
		t.Fatalf("no total in the histogram %q", histogram)
	}
	size, err := strconv.ParseInt(total[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// processIn is the child process that works in a directory.
func processIn(t testing.TB, dir string) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && cwd == dir {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no process in %s", dir)
	return 0
}

// attach gives a HotSpot process one command by its attach protocol (see
// AttachListener and VirtualMachineImpl in the JDK's source): a file asks it to
// listen when it gets SIGQUIT, and then it does so on a socket.
func attach(t testing.TB, pid int, command string, args ...string) string {
	t.Helper()
	ask := fmt.Sprintf("/tmp/.attach_pid%d", pid)
	if err := os.WriteFile(ask, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(ask)
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	until(t, "attached", func() (ok bool) {
		var err error
		conn, err = new(net.Dialer).DialContext(t.Context(), "unix", fmt.Sprintf("/tmp/.java_pid%d", pid))
		return err == nil
	})
	defer conn.Close()
	var request bytes.Buffer
	for i := range 5 { // the version, the command and always three arguments
		if word := append([]string{"1", command}, args...); i < len(word) {
			request.WriteString(word[i])
		}
		request.WriteByte(0)
	}
	if _, err := conn.Write(request.Bytes()); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("0\n")) {
		t.Fatalf("%s = %q, %v", command, answer, err)
	}
	return string(answer)
}
