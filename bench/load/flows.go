package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/bsm/redislock"
	"github.com/gin-gonic/gin"
	"github.com/go-zookeeper/zk"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemredislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// What every case exchanges.
const (
	order     = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee"}`
	receipt   = `{"id":"p1","from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee","status":"succeeded"}`
	keyHeader = "Idempotency-Key"
	jsonType  = "application/json"
	resultTTL = 24 * time.Hour
)

// sessionTimeout and patience are long, so that a busy machine neither loses a session nor
// refuses a request. tickTime is that of the servers, see testserver.WithTickTime.
const (
	sessionTimeout = 40 * time.Second
	patience       = 20 * time.Second
	tickTime       = 500 * time.Millisecond
	lockRoot       = "/lock"
)

var patient = []idem.Option{
	idem.WithLockTimeout(patience), idem.WithStoreTimeout(patience), idem.WithSettleTimeout(patience),
}

// flow makes the handlers of the route. The service closes what they use.
type flow func(ctx context.Context, s *service) ([]gin.HandlerFunc, error)

// pay is the handler of all cases. It reads the order and counts the run.
func (s *service) pay(c *gin.Context) []byte {
	s.runs.Add(1)
	_, _ = io.Copy(io.Discard, c.Request.Body)
	return []byte(receipt)
}

func (s *service) handler(c *gin.Context) { c.Data(http.StatusCreated, jsonType, s.pay(c)) }

func bareFlow(_ context.Context, s *service) ([]gin.HandlerFunc, error) {
	return []gin.HandlerFunc{s.handler}, nil
}

// getFlow is the least that a replay could do: one GET. A missing result is written, for
// the first request of a key.
func getFlow(_ context.Context, s *service) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	return []gin.HandlerFunc{func(c *gin.Context) {
		key := s.config.Prefix + c.GetHeader(keyHeader)
		body, err := client.Get(c.Request.Context(), key).Bytes()
		if errors.Is(err, goredis.Nil) {
			body = s.pay(c)
			err = client.Set(c.Request.Context(), key, body, resultTTL).Err()
		}
		answer(c, body, err)
	}}, err
}

// plainFlow is what is usually written by hand with ZooKeeper: an ephemeral znode as the
// lock, a GET, the handler, a SET, and the delete of the znode. It compares no requests,
// records no begin, fences no late holder and notices no loss of Redis.
func plainFlow(_ context.Context, s *service) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	if err != nil {
		return nil, err
	}
	conn, err := s.zooKeeperConn()
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error {
		conn.Close()
		return nil
	})
	root := s.chroot() + lockRoot
	return []gin.HandlerFunc{func(c *gin.Context) {
		sum := sha256.Sum256([]byte(c.GetHeader(keyHeader)))
		hash := hex.EncodeToString(sum[:])
		path, err := conn.Create(root+"/"+hash[:3]+"/"+hash[3:], nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		if err != nil {
			answer(c, nil, err)
			return
		}
		body, err := s.runOnce(c, client, s.config.Prefix+hash)
		answer(c, body, errors.Join(err, conn.Delete(path, -1)))
	}}, nil
}

// redislockFlow is the same with a bsm/redislock in the place of the znode.
func redislockFlow(_ context.Context, s *service) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	if err != nil {
		return nil, err
	}
	locker := redislock.New(client)
	return []gin.HandlerFunc{func(c *gin.Context) {
		ctx, key := c.Request.Context(), c.GetHeader(keyHeader)
		lock, err := locker.Obtain(ctx, s.config.Prefix+"lock:"+key, 30*time.Second, nil)
		if err != nil {
			answer(c, nil, err)
			return
		}
		body, err := s.runOnce(c, client, s.config.Prefix+key)
		answer(c, body, errors.Join(err, lock.Release(ctx)))
	}}, nil
}

// runOnce is what the flows by hand do between lock and unlock.
func (s *service) runOnce(c *gin.Context, client goredis.UniversalClient, key string) ([]byte, error) {
	ctx := c.Request.Context()
	stored, err := client.Get(ctx, key).Bytes()
	if !errors.Is(err, goredis.Nil) {
		return stored, err
	}
	body := s.pay(c)
	return body, client.Set(ctx, key, body, resultTTL).Err()
}

func answer(c *gin.Context, body []byte, err error) {
	if err != nil {
		c.String(http.StatusServiceUnavailable, "%v", err)
		return
	}
	c.Data(http.StatusCreated, jsonType, body)
}

// policy is that of a route with client keys and every default. Scopes are left out,
// because no peer has them.
var policy = idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}

func zooKeeperFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	locker, err := s.zooKeeperLocker(ctx)
	if err != nil {
		return nil, err
	}
	return s.protected(ctx, locker, policy)
}

// stormFlow lets duplicates wait for the first request. It counts the locks that it takes.
func stormFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	locker, err := s.zooKeeperLocker(ctx)
	if err != nil {
		return nil, err
	}
	p := policy
	p.DuplicateWait = time.Minute
	return s.protected(ctx, countedLocker{locker, s}, p)
}

func redisFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	if err != nil {
		return nil, err
	}
	locker, err := idemredislock.New(ctx, client, idemredislock.WithPrefix(s.config.Prefix), idemredislock.WithLogger(silent))
	if err != nil {
		return nil, err
	}
	return s.protected(ctx, locker, policy)
}

var silent = slog.New(slog.DiscardHandler)

// protected is the handler behind Idemkeeper, with the token store in Redis.
func (s *service) protected(ctx context.Context, locker driver.Locker, p idem.Policy) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	if err != nil {
		return nil, err
	}
	store, err := redisstore.New(ctx, client, redisstore.WithPrefix(s.config.Prefix), redisstore.WithLogger(silent))
	if err != nil {
		return nil, err
	}
	engine, err := idem.New(locker, store, patient...)
	if err != nil {
		return nil, err
	}
	s.onClose(engine.Close)
	middleware, err := idemgin.New(engine, p)
	return []gin.HandlerFunc{middleware, s.handler}, err
}

// countedLocker counts the locks that the engine asks for.
type countedLocker struct {
	*zookeeper.Locker
	service *service
}

func (l countedLocker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	l.service.locks.Add(1)
	return l.Locker.TryAcquire(ctx, req)
}
