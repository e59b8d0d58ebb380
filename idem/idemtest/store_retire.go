package idemtest

import (
	"strings"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeRetireTests are about dead lock domains.
var storeRetireTests = []storeTest{
	{name: "a domain is retired once and for all", run: func(b *storeBench) {
		for _, domain := range []string{"d", "zookeeper-" + strings.Repeat("x", 200)} {
			b.retired(domain, false)
			for range 2 {
				if err := b.s.RetireDomain(b.ctx, domain, driver.Decision{By: "me", Reason: "burnt down"}); err != nil {
					b.Fatalf("RetireDomain(%q) = %v", domain, err)
				}
				b.retired(domain, true)
			}
		}
		b.retired("e", false)
	}},
}

// storeHighestTests are about the highest fence of a lock domain.
var storeHighestTests = []storeTest{
	{name: "the highest fence of a domain is kept", run: func(b *storeBench) {
		long := "zookeeper-" + strings.Repeat("x", 200)
		for _, step := range []struct {
			note    driver.Fence
			highest uint64
		}{
			{driver.Fence{Domain: "d", Token: 9}, 9},
			{driver.Fence{Domain: "d", Token: 10}, 10}, // not in the order of texts
			{driver.Fence{Domain: "d", Token: 10}, 10}, // sent again
			{driver.Fence{Domain: "d", Token: 3}, 10},  // late
			{driver.Fence{Domain: "d", Token: 1<<60 + 1}, 1<<60 + 1},
			{driver.Fence{Domain: "d", Token: 1 << 60}, 1<<60 + 1},
			{driver.Fence{Domain: long, Token: 5}, 5},
			{driver.Fence{Domain: long[:209], Token: 7}, 7},
		} {
			if err := b.s.NoteFence(b.ctx, step.note); err != nil {
				b.Fatalf("NoteFence(%v) = %v", step.note, err)
			}
			b.highest(step.note.Domain, step.highest)
		}
		b.highest(long, 5)
		b.highest("e", 0)
	}},
	{name: "concurrent notes keep the highest fence", run: func(b *storeBench) {
		var all sync.WaitGroup
		for token := range uint64(16) {
			all.Go(func() {
				if err := b.s.NoteFence(b.ctx, driver.Fence{Domain: "d", Token: token + 1}); err != nil {
					b.Errorf("NoteFence(d/%d) = %v", token+1, err)
				}
			})
		}
		all.Wait()
		b.highest("d", 16)
	}},
}

func (b *storeBench) highest(domain string, want uint64) {
	b.Helper()
	if got, err := b.s.HighestFence(b.ctx, domain); got != want || err != nil {
		b.Errorf("HighestFence(%q) = %d, %v; want %d", domain, got, err, want)
	}
}

func (b *storeBench) retired(domain string, want bool) {
	b.Helper()
	if got, err := b.s.DomainRetired(b.ctx, domain); got != want || err != nil {
		b.Errorf("DomainRetired(%q) = %v, %v; want %v", domain, got, err, want)
	}
}
