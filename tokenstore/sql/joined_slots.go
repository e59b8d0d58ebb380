package sqlstore

import (
	"reflect"
	"sync"
	"weak"
)

// slots are the transactions that may be open at once on a pool, one less than its connections. All
// stores on the pool share them. Otherwise two of them could take every connection, and their handlers
// would wait for each other's.
type slots struct{ free chan struct{} }

// allSlots are the slots of the pools in use, by the address of the pool. A store holds both its pool and
// its slots, so the address is of no other pool while the slots are there.
var allSlots = struct {
	sync.Mutex
	of map[slotsKey]weak.Pointer[slots]
}{of: map[slotsKey]weak.Pointer[slots]{}}

type slotsKey struct {
	pool uintptr
	size int
}

// slotsOf returns the slots of a pool, which is a pointer.
func slotsOf(pool any, size int) *slots {
	key := slotsKey{reflect.ValueOf(pool).Pointer(), size}
	allSlots.Lock()
	defer allSlots.Unlock()
	if s := allSlots.of[key].Value(); s != nil {
		return s
	}
	for old, s := range allSlots.of {
		if s.Value() == nil {
			delete(allSlots.of, old)
		}
	}
	s := &slots{make(chan struct{}, size)}
	allSlots.of[key] = weak.Make(s)
	return s
}
