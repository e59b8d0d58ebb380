package redislock

import (
	"context"
	"fmt"
)

// Close gives back all locks that are still held, at once, and waits until that
// is acknowledged and what was being released in the background is gone. When
// ctx ends first it stops waiting and returns an error, once the requests under
// way have ended, which takes two seconds at most; the locks that are left then
// last for their time to live. The client is left open.
//
// So do not call it while handlers run that hold locks. A process that has to
// end with handlers running calls Abandon, or nothing: their locks then outlive
// it by the time to live at most, which is what protects their keys.
func (l *Locker) Close(ctx context.Context) error {
	return l.end(func(left []*lease) error {
		for _, le := range left {
			le.lose(errClosed.Error())
			le.ReleaseBehind()
		}
		select {
		case <-l.background.Idle():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("lock/redis: close: some locks are left to time out: %w", context.Cause(ctx))
		}
	})
}

// Abandon stops all goroutines and gives nothing back. All leases are lost as
// far as this process is concerned; in Redis the locks stay for their time to
// live.
func (l *Locker) Abandon() {
	_ = l.end(func(left []*lease) error {
		for _, le := range left {
			le.lose("locker is abandoned")
		}
		return nil
	})
}

// end stops the locker, once.
func (l *Locker) end(finish func([]*lease) error) error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		<-l.ended
		return nil
	}
	defer close(l.ended)
	l.closing = true
	left := make([]*lease, 0, len(l.held))
	for le := range l.held {
		left = append(left, le)
	}
	l.mu.Unlock()
	err := finish(left)
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.stop()
	l.wg.Wait()
	return err
}

// spawn runs fn on a goroutine, unless the locker is over.
func (l *Locker) spawn(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.wg.Go(fn)
	return true
}
