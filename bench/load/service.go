package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	goredis "github.com/redis/go-redis/v9"
)

// serviceConfig is what a service is told when it starts.
type serviceConfig struct {
	Case      string
	Redis     string // URL
	RedisPool int    // connections, or 0 for the default of go-redis
	ZooKeeper []string
	Postgres  string // URL of a database of the case's own
	MariaDB   string // the same as the driver's data source name
	Prefix    string // of the keys in Redis
	Profile   string // file, or ""
}

// serviceReady is what a service answers once it serves.
type serviceReady struct {
	Address string // of the route
	Control string // of the figures
	Error   string
}

// serviceFigures are counted since the start of the service.
type serviceFigures struct {
	Runs, Locks        int64
	Allocations, Bytes uint64
}

// The first word to a service with a Profile starts it.
const startProfile = "profile"

// service is the process of one case.
type service struct {
	config      serviceConfig
	runs, locks atomic.Int64
	redis       goredis.UniversalClient // nil before its first use
	closers     []func(context.Context) error
}

func (s *service) onClose(f func(context.Context) error) { s.closers = append(s.closers, f) }

// close closes in reverse order.
func (s *service) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var all error
	for _, closer := range slices.Backward(s.closers) {
		all = errors.Join(all, closer(ctx))
	}
	return all
}

// serve runs the service until in ends.
func serve(ctx context.Context, config serviceConfig, in *json.Decoder, out *json.Encoder) (err error) {
	s := &service{config: config}
	defer func() { err = errors.Join(err, s.close()) }()
	ready, err := s.start(ctx)
	if err != nil {
		return errors.Join(err, out.Encode(serviceReady{Error: err.Error()}))
	}
	if err := out.Encode(ready); err != nil {
		return err
	}
	for {
		var word string
		if err := in.Decode(&word); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if word == startProfile {
			if err := s.profile(); err != nil {
				return err
			}
		}
	}
}

func (s *service) start(ctx context.Context) (serviceReady, error) {
	c, err := caseNamed(s.config.Case)
	if err != nil {
		return serviceReady{}, err
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	handlers, err := c.flow(ctx, s)
	if err != nil {
		return serviceReady{}, err
	}
	router.POST("/pay", handlers...)
	address, err := s.listen(ctx, router)
	if err != nil {
		return serviceReady{}, err
	}
	control, err := s.listen(ctx, http.HandlerFunc(s.figures))
	return serviceReady{Address: address, Control: control}, err
}

// listen serves h on a free port.
func (s *service) listen(ctx context.Context, h http.Handler) (address string, err error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	s.onClose(func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if ended := <-ended; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
		return err
	})
	return ln.Addr().String(), nil
}

func (s *service) figures(w http.ResponseWriter, _ *http.Request) {
	heap := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(heap)
	err := json.NewEncoder(w).Encode(serviceFigures{
		Runs: s.runs.Load(), Locks: s.locks.Load(),
		Allocations: heap[0].Value.Uint64(), Bytes: heap[1].Value.Uint64(),
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// profile writes a profile of the processor time from now to the end, and one of all
// allocations beside it.
func (s *service) profile() error {
	file, err := os.Create(s.config.Profile)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return errors.Join(err, file.Close())
	}
	s.onClose(func(context.Context) error {
		pprof.StopCPUProfile()
		return errors.Join(file.Close(), writeAllocations(s.config.Profile+allocationsSuffix))
	})
	return nil
}

// allocationsSuffix follows the name of the processor profile.
const allocationsSuffix = ".allocs"

func writeAllocations(name string) error {
	file, err := os.Create(name) //nolint:gosec // the file that the caller named
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}
