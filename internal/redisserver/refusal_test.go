package redisserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// reply is an error that Redis answered with.
type reply string

func (r reply) Error() string { return string(r) }
func (r reply) RedisError()   {}

func TestAnswersAreToldFromRefusals(t *testing.T) {
	t.Parallel()
	var _ goredis.Error = reply("")
	for text, refuses := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value": false,
		"ERR fencing tokens are used up":                                    false,
		"NOSCRIPT No matching script. Please use EVAL.":                     false,
		"NOPERM User default has no permissions to run 'set'":               false, // in the middle of a script
		"BUSYKEY Target key name already exists.":                           false,
		"ERR OOM is no state":                                               false,
		"LOADING Redis is loading the dataset in memory":                    true,
		"READONLY You can't write against a read only replica.":             true,
		"MASTERDOWN Link with MASTER is down":                               true,
		"CLUSTERDOWN The cluster is down":                                   true,
		"TRYAGAIN Multiple keys request during rehashing of slot":           true,
		"BUSY Redis is busy running a script.":                              true,
		"OOM command not allowed when used memory > 'maxmemory'.":           true,
		"MISCONF Redis is configured to save RDB snapshots":                 true,
		"NOREPLICAS Not enough good replicas to write.":                     true,
		"ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed when used memory > 'maxmemory'.": true, // Redis 6
	} {
		err := fmt.Errorf("begin: %w", reply(text))
		if got := redisserver.Refuses(err); got != refuses {
			t.Errorf("Refuses(%q) = %t, want %t", text, got, refuses)
		}
		if got := redisserver.Answered(err); got == refuses {
			t.Errorf("Answered(%q) = %t, want %t", text, got, !refuses)
		}
	}
	for _, err := range []error{nil, io.EOF, context.DeadlineExceeded, errors.New("OOM says somebody else")} {
		if redisserver.Refuses(err) || redisserver.Answered(err) {
			t.Errorf("Refuses(%v) or Answered() = true, want false: it is not Redis's", err)
		}
	}
}
