package testserver_test

import (
	"bytes"
	"cmp"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// steppable is a server on a machine of its own.
type steppable interface {
	StepClock(offset time.Duration)
	FillDisk()
	RecoverDisk()
}

// Each kind of server feels a step of its clock, refuses writes or ends on a full disk, and
// goes on after a restart with space.
func TestMachine(t *testing.T) {
	for name, start := range map[string]func(t *testing.T, m *testserver.Machine) (s steppable, now func() (time.Time, error), write func() error){
		"redis": func(t *testing.T, m *testserver.Machine) (steppable, func() (time.Time, error), func() error) {
			t.Helper()
			r := testserver.StartRedis(t, testserver.OnRedisMachine(m), testserver.WithRedisArgs("--appendonly", "yes", "--appendfsync", "always"))
			return r, func() (time.Time, error) {
				vals, err := r.Do("TIME")
				if err != nil {
					return time.Time{}, err
				}
				seconds, err := strconv.ParseInt(vals[0], 10, 64)
				return time.Unix(seconds, 0), err
			}, func() error { _, err := r.Do("SET", "k", "v"); return err }
		},
		"zookeeper": func(t *testing.T, m *testserver.Machine) (steppable, func() (time.Time, error), func() error) {
			t.Helper()
			// A single server may refuse the log that a full disk has left, see below.
			z := testserver.StartEnsemble(t, 3, testserver.OnZooKeeperMachine(m)).Leader()
			conn := connect(t, 20*time.Second, z.Addr())
			if err := create(conn, "/clock"); err != nil {
				t.Fatal(err)
			}
			write := func() error { _, err := conn.Set("/clock", make([]byte, 1000), -1); return err }
			return z, func() (time.Time, error) {
				stat, err := conn.Set("/clock", nil, -1)
				if err != nil {
					return time.Time{}, err
				}
				return time.UnixMilli(stat.Mtime), nil
			}, write
		},
		"postgres": func(t *testing.T, m *testserver.Machine) (steppable, func() (time.Time, error), func() error) {
			t.Helper()
			p := testserver.StartPostgresOn(t, m)
			db, err := sql.Open("pgx", p.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			if _, err := db.Exec("CREATE TABLE t (text TEXT)"); err != nil {
				t.Fatal(err)
			}
			return p, func() (now time.Time, err error) {
					err = db.QueryRow("SELECT clock_timestamp()").Scan(&now)
					return now, err
				}, func() error {
					_, err := db.Exec("INSERT INTO t SELECT md5(random()::text) FROM generate_series(1, 1000)")
					return err
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, now, write := start(t, testserver.NewMachine(t))
			for _, offset := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
				s.StepClock(offset)
				eventually(t, "the stepped clock", func() bool {
					got, err := now()
					return err == nil && (time.Until(got)-offset).Abs() < 5*time.Second
				})
			}
			if !testserver.CanFillDisks() {
				t.Log("this user mounts no disks")
				return
			}
			s.FillDisk()
			eventually(t, "a write that fails", func() bool { return write() != nil })
			s.RecoverDisk()
			eventually(t, "a write", func() bool { return write() == nil })
		})
	}
}

// A full disk can leave a ZooKeeper with a log that it refuses. A member of an ensemble then begins
// without data, and has everything again.
func TestMemberWithADamagedLogRecovers(t *testing.T) {
	t.Parallel()
	if !testserver.CanFillDisks() {
		t.Log("this user mounts no disks")
		return
	}
	e := testserver.StartEnsemble(t, 3, testserver.OnZooKeeperMachine(testserver.NewMachine(t)))
	conn := connect(t, 20*time.Second, e.Leader().Addr())
	if err := create(conn, "/before"); err != nil {
		t.Fatalf("Create = %v", err)
	}
	for i, member := range e.Followers() {
		member.FillDisk()
		member.Stop()
		damageLog(t, member, i == 0)
		member.RecoverDisk()
		mustExist(t, connect(t, 20*time.Second, member.Addr()), "/before", true)
	}
}

// damageLog changes the last transaction in the log of a stopped server, or leaves what is no transaction
// behind it.
func damageLog(t *testing.T, z *testserver.ZooKeeper, change bool) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(z.Data(), "version-2", "log.*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("%s has no log: %v", z.Data(), err)
	}
	file := slices.MaxFunc(logs, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := len(bytes.TrimRight(content, "\x00B")) - 2 // after the last one come its end mark "B" and zeros
	damage := []byte{^content[at]}
	if !change {
		at, damage = len(bytes.TrimRight(content, "\x00")), bytes.Repeat([]byte{9}, 12) // a sum and a length
	}
	log, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteAt(damage, int64(at)); err != nil {
		t.Fatal(err)
	}
}
