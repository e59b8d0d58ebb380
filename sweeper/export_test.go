package sweeper

import "github.com/idemkeeper/idemkeeper/idem/driver"

// WithPage and WithWorkers make the bounds small for tests.
func WithPage(n int) Option    { return func(c *config) { c.page = n } }
func WithWorkers(n int) Option { return func(c *config) { c.workers = n } }

// List makes a sweeper list the records of a store other than that of its engine.
func (s *Sweeper) List(store driver.Store) { s.store = store }
