package redisscript_test

import (
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

var files = fstest.MapFS{
	"head.lua": {Data: []byte("local sum = 1\n")},
	"add.lua":  {Data: []byte("return sum + ARGV[1]")},
}

func TestLoadJoinsFiles(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	script := redisscript.Load(files, "head.lua", "add.lua")
	if got, err := script.Run(t.Context(), client, nil, 2).Int(); got != 3 || err != nil {
		t.Errorf("Run(2) = %d, %v, want 3", got, err)
	}
}

func TestLoadPanicsWithoutAFile(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("Load() of a missing file did not panic")
		}
	}()
	redisscript.Load(files, "head.lua", "old.lua")
}

// The first time the server does not know the script.
func TestPipelinedAnswersInOrder(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	script := redisscript.Load(files, "head.lua", "add.lua")
	for _, want := range []int{2, 1} { // pipelines
		pipelines, calls := 0, make([]redisscript.Call, 5)
		for i := range calls {
			calls[i].Args = []string{strconv.Itoa(i)}
		}
		for i, answer := range redisscript.Pipelined(t.Context(), client, script, calls, func(goredis.Pipeliner) { pipelines++ }) {
			if got, err := answer.Int(); got != i+1 || err != nil {
				t.Errorf("answer %d = %d, %v, want %d", i, got, err, i+1)
			}
		}
		if pipelines != want {
			t.Errorf("Pipelined() sent %d pipelines, want %d", pipelines, want)
		}
	}
}

// The client leaves the commands of a pipeline without an error then.
func TestPipelinedFailsIfTheServerRefusesTheConnection(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	server.RequireAuth("password")
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: "another"})
	defer client.Close()
	script := redisscript.Load(files, "head.lua", "add.lua")
	for i, answer := range redisscript.Pipelined(t.Context(), client, script, make([]redisscript.Call, 3), nil) {
		if answer.Err() == nil || !strings.Contains(answer.Err().Error(), "WRONGPASS") {
			t.Errorf("answer %d = %v, %v, want the server's refusal", i, answer.Val(), answer.Err())
		}
	}
}
