package zookeeper

import "github.com/idemkeeper/idemkeeper/internal/background"

// tracker is a [background.Tracker] under this package's names.
type tracker struct{ background.Tracker }

func newTracker() *tracker { return &tracker{} }

func (t *tracker) add()                  { t.Add() }
func (t *tracker) done()                 { t.Done() }
func (t *tracker) idle() <-chan struct{} { return t.Idle() }
