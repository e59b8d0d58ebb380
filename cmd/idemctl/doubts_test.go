package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Settings of make doubts.
const (
	envDoubts = "IDEMKEEPER_DOUBTS"      // how many, by default a few that show that the measurement works
	envRate   = "IDEMKEEPER_DOUBTS_RATE" // decisions a second
)

// A bad deploy leaves doubts by the thousand, and they are exported and settled by processes of idemctl
// while payments run. The file is settled in parts, with a pause as long as the part after each. So each round of
// payments beside decisions has one without them.
func TestDoubtsByTheThousand(t *testing.T) {
	doubts, parts, rate := 300, 3, "0"
	if n, err := strconv.Atoi(os.Getenv(envDoubts)); err == nil {
		doubts, parts, rate = n, 20, cmp.Or(os.Getenv(envRate), "250")
	}
	for name, start := range map[string]func(*testing.T) (*idem.Engine, map[string]string){
		"PostgreSQL": func(t *testing.T) (*idem.Engine, map[string]string) {
			t.Helper()
			name := scratch.Empty(t, testserver.SharedPostgres(t))
			_ = migratedStore(t, name)
			db := scratch.Open(t, name)
			engine, err := idemsql.New(t.Context(), db.Write, db.Dialect, idemsql.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			return engine, map[string]string{"IDEMCTL_DATABASE": name}
		},
		"Redis": func(t *testing.T) (*idem.Engine, map[string]string) {
			t.Helper()
			server := testserver.StartRedis(t)
			engine, err := idemredis.New(t.Context(), redisClient(t, server), idemredis.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			return engine, map[string]string{"IDEMCTL_REDIS": server.URL()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			engine, env := start(t)
			defer func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_ = engine.Close(ctx)
			}()
			m := doubtsRun{t: t, engine: engine, env: env, dir: t.TempDir()}
			m.leaveDoubts(doubts)
			m.measure(strings.ToLower(name), doubts, parts, rate)
		})
	}
}

// doubtsRun is the measurement on one store.
type doubtsRun struct {
	t      *testing.T
	engine *idem.Engine
	env    map[string]string
	dir    string
	sent   atomic.Int64
}

// errBadDeploy is what handlers return that leave doubt.
var errBadDeploy = errors.New("bad deploy")

// pay executes a fresh operation, whose handler returns an error or nil.
func (m *doubtsRun) pay(ctx context.Context, failure error) error {
	key := "pay-" + strconv.FormatInt(m.sent.Add(1), 10)
	policy := idem.Policy{Name: httpRoute, AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	_, err := m.engine.Do(ctx, idem.Operation{Policy: &policy, Key: idem.Key(key), Fingerprint: idem.FingerprintOf("pay", key)},
		func(context.Context) (idem.Response, error) {
			return idem.Response{Status: 201, Body: []byte("{}")}, failure
		})
	return err
}

// leaveDoubts has handlers fail.
func (m *doubtsRun) leaveDoubts(n int) {
	m.t.Helper()
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for range work {
				if err := m.pay(m.t.Context(), errBadDeploy); !errors.Is(err, errBadDeploy) {
					m.t.Errorf("a request that is to be in doubt: %v", err)
				}
			}
		})
	}
	clients.Wait()
}

// idemctl runs a process, and returns its standard output and its greatest memory in KiB.
func (m *doubtsRun) idemctl(args ...string) (stdout string, memory int64) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), ranAsIdemctl+"=1")
	for name, value := range m.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		m.t.Fatalf("idemctl %q: %v\n%s%s", args, err, out.String(), said.String())
	}
	return out.String(), maxMemory(cmd.ProcessState)
}

// load pays with two clients, and returns the median of what a payment took.
func (m *doubtsRun) load(ctx context.Context) time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
				began := time.Now()
				if err := m.pay(m.t.Context(), nil); err != nil {
					m.t.Errorf("a payment: %v", err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)/2]
}

func (m *doubtsRun) measure(name string, doubts, parts int, rate string) {
	t := m.t
	began := time.Now()
	exported, memory := m.idemctl("record", "export")
	figure := func(what string, value any) {
		_, _ = fmt.Fprintf(os.Stdout, "FIGURE doubts_%s_%s %v\n", name, what, value)
	}
	figure("export_seconds", round(time.Since(began).Seconds()))
	figure("export_memory_mib", memory/1024)
	rows, err := csv.NewReader(strings.NewReader(exported)).ReadAll()
	if err != nil || len(rows) != doubts+1 {
		t.Fatalf("the export has %d lines, %v, want %d and one", len(rows), err, doubts)
	}
	decision := slices.Index(rows[0], "decision")
	var settling time.Duration
	var ratios []float64
	for i := range parts {
		part := rows[1+i*doubts/parts : 1+(i+1)*doubts/parts]
		for _, row := range part {
			row[decision] = "not-applied"
		}
		var text bytes.Buffer
		if err := csv.NewWriter(&text).WriteAll(slices.Concat(rows[:1], part)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(m.dir, fmt.Sprint("part", i, ".csv"))
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		beside := make(chan time.Duration, 1)
		go func() { beside <- m.load(ctx) }()
		began := time.Now()
		out, used := m.idemctl("record", "decide", "--from", file, "--reason", "bad deploy", "--rate", rate)
		took := time.Since(began)
		stop()
		with := <-beside
		memory = max(memory, used)
		if want := fmt.Sprintf("%d settled,", len(part)); !strings.HasPrefix(out, want) {
			t.Fatalf("record decide = %q, want %q", out, want)
		}
		settling += took
		ctx, stop = context.WithTimeout(t.Context(), took)
		without := m.load(ctx)
		stop()
		if with > 0 && without > 0 {
			ratios = append(ratios, with.Seconds()/without.Seconds())
		}
	}
	if left, _ := m.idemctl("record", "export"); strings.Count(left, "\n") != 1 {
		t.Errorf("%d doubts are left", strings.Count(left, "\n")-1)
	}
	figure("settled", doubts)
	figure("settle_seconds", round(settling.Seconds()))
	figure("settled_per_second", round(float64(doubts)/settling.Seconds()))
	figure("decide_memory_mib", memory/1024)
	if slices.Sort(ratios); len(ratios) > 0 {
		figure("payments_p50_ratio", fmt.Sprintf("%.2f", ratios[len(ratios)/2]))
	}
}

func round(f float64) float64 { return float64(int(f*10+0.5)) / 10 }
