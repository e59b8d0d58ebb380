package idemtest

import (
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeRetireTests are about dead lock domains.
var storeRetireTests = []storeTest{
	{name: "a domain is retired once and for all", run: func(b *storeBench) {
		for _, domain := range []string{"d", "zookeeper-" + strings.Repeat("x", 200)} {
			b.retired(domain, false)
			for range 2 {
				if err := b.s.RetireDomain(b.ctx, domain, idem.Decision{By: "me", Reason: "burnt down"}); err != nil {
					b.Fatalf("RetireDomain(%q) = %v", domain, err)
				}
				b.retired(domain, true)
			}
		}
		b.retired("e", false)
	}},
}

func (b *storeBench) retired(domain string, want bool) {
	b.Helper()
	if got, err := b.s.DomainRetired(b.ctx, domain); got != want || err != nil {
		b.Errorf("DomainRetired(%q) = %v, %v; want %v", domain, got, err, want)
	}
}
