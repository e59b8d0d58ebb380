package joingorm

import (
	"context"
	"errors"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
)

func open(cfg gorm.Config) paytest.Open {
	return func(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
		pool, err := s.SQL(ctx)
		if err != nil {
			return nil, err
		}
		cfg.Logger = logger.Discard
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &cfg)
		if err != nil {
			return nil, err
		}
		payments = New(db)
		return func(ctx context.Context, p paytest.Payment) (int64, error) { return payments.Pay(ctx, Payment(p)) }, nil
	}
}

// payments is that of the latest service in this process.
var payments *Payments

func TestMain(m *testing.M) {
	paytest.Main(m, map[string]paytest.Open{"gorm": open(gorm.Config{}), "gorm, prepared": open(gorm.Config{PrepareStmt: true})},
		goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")) // of prepared statements
}

func TestPaymentsOfGORM(t *testing.T) { paytest.Run(t, "gorm", open(gorm.Config{}), nil) }

func TestPaymentsOfGORMWithPreparedStatements(t *testing.T) {
	paytest.Run(t, "gorm, prepared", open(gorm.Config{PrepareStmt: true}), nil)
}

// A transaction of GORM inside of the handler is a savepoint of the joined one.
func TestNestedTransactionOfGORM(t *testing.T) {
	s := paytest.Setup(t, "gorm", open(gorm.Config{}), nil).Serve()
	write := func(c *gin.Context, id string, amount int64, fail error) error {
		tx, err := payments.tx(c.Request.Context())
		if err != nil {
			return err
		}
		return tx.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Create(&Payment{id, "alice", amount}).Error, fail)
		})
	}
	s.After(func(c *gin.Context) {
		if err := write(c, "kept", 7, nil); err != nil {
			t.Error(err)
		}
		if err := write(c, "undone", 8, errors.New("no")); err == nil {
			t.Error("Transaction() = <nil>, want the error of its function")
		}
	})
	s.Want(s.Pay("k1", 100), 201, false)
	s.Want(s.Pay("k1", 100), 201, true)
	s.WantPayments(7, 100)
}

// The middleware ends the transaction. A handler that does so is refused, and nothing remains.
func TestCommitOfGORMIsRefused(t *testing.T) {
	for name, end := range map[string]func(*gorm.DB) *gorm.DB{"Commit": (*gorm.DB).Commit, "Rollback": (*gorm.DB).Rollback} {
		t.Run(name, func(t *testing.T) {
			s := paytest.Setup(t, "gorm", open(gorm.Config{}), nil).Serve()
			s.After(func(c *gin.Context) {
				tx, err := payments.tx(c.Request.Context())
				if err != nil {
					t.Error(err)
					return
				}
				_ = end(tx) // swallowed
			})
			s.Want(s.Pay("k1", 100), 503, false)
			s.WantPayments()
		})
	}
}
