package redisserver

import (
	"context"
	"fmt"
	"runtime/debug"

	goredis "github.com/redis/go-redis/v9"
)

// Exec sends a pipeline. Each command then has its own answer or error. The client leaves
// the commands without an error if a server refuses a new connection, for example because
// the password is wrong. They would look as if the server had answered with nothing, so
// Exec gives that error to all of them. A panic of the client is their error too, see [Process].
func Exec(ctx context.Context, pipe goredis.Pipeliner) {
	sent := pipe.Cmds()
	defer func() { FailAll(sent, recover()) }()
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return
		}
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// Process sends one command. If the client panics, for example in a hook, the panic is the command's error. Many
// commands are sent in the background, where a panic would end the process.
func Process(ctx context.Context, client goredis.UniversalClient, cmd goredis.Cmder) {
	defer func() { FailAll([]goredis.Cmder{cmd}, recover()) }()
	_ = client.Process(ctx, cmd)
}

// FailAll makes a panic of the client the error of its commands. It does nothing if there was none.
func FailAll(cmds []goredis.Cmder, panicked any) {
	if panicked == nil {
		return
	}
	err := panicError(panicked)
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

func panicError(panicked any) error {
	return fmt.Errorf("redis: the client panicked: %v\n%s", panicked, debug.Stack())
}

// guarded calls fn, and returns its panic as an error.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	return fn()
}
