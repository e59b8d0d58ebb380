package zookeeper

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// TestShortSessionFitsTheServersTick: the servers of the tests have a tick of
// 500 ms, and the default of 2 s leaves no room for a session of 2 s.
func TestShortSessionFitsTheServersTick(t *testing.T) {
	cfg, err := Config{Servers: testserver.SharedZooKeeper(t), SessionTimeout: 2 * time.Second}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.fitTick(t.Context()); err != nil || cfg.TickTime != 500*time.Millisecond {
		t.Errorf("fitTick() = %v, %v, want 500ms", cfg.TickTime, err)
	}
	cfg.Chroot, cfg.Logger = testserver.Chroot(t), slog.New(slog.DiscardHandler)
	cfg.TickTime = 0
	c, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open() = %v", err)
	}
	defer c.Close(context.Background())
	if c.cfg.TickTime != 500*time.Millisecond {
		t.Errorf("tick = %v, want 500ms", c.cfg.TickTime)
	}
}

func TestTickIsNotProbedWithoutNeed(t *testing.T) {
	cfg, err := Config{Servers: []string{"127.0.0.1:1"}, SessionTimeout: 10 * time.Second}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.fitTick(t.Context()); err != nil || cfg.TickTime != defaultTick {
		t.Errorf("fitTick() = %v, %v, want %v", cfg.TickTime, err, defaultTick)
	}
	cfg.TickTime, cfg.SessionTimeout = 0, time.Second
	if err := cfg.fitTick(t.Context()); err == nil {
		t.Error("fitTick() = nil with nobody to ask, want an error")
	}
	cfg.TickTime = time.Second
	if err := cfg.fitTick(t.Context()); err != nil || cfg.TickTime != time.Second {
		t.Errorf("fitTick() = %v, %v, want what was configured", cfg.TickTime, err)
	}
}
