package broken

import (
	"database/sql"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// UniqueKey has the key in a unique column of the payment itself. A repeat finds the row, and its answer is built again from it.
//
// It never pays twice. But another order under the same key is told that it was paid: the kit finds it at "INSERT INTO orders",
// other body. And the answer that is built again has the time of the database, which is rounded.
type UniqueKey struct{ DB *sql.DB }

// Handle is the handler of the route.
func (u *UniqueKey) Handle(c *gin.Context) {
	key, o, ok := read(c)
	if !ok {
		return
	}
	ctx, created := c.Request.Context(), time.Now().UTC().Truncate(time.Microsecond)
	res, err := u.DB.ExecContext(ctx, "INSERT INTO orders (key, amount, created_at) VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING", key, o.Amount, created)
	if err != nil {
		failed(c, err)
		return
	}
	if n, err := res.RowsAffected(); err != nil {
		failed(c, err)
		return
	} else if n == 0 {
		if err := u.DB.QueryRowContext(ctx, "SELECT amount, created_at FROM orders WHERE key = $1", key).Scan(&o.Amount, &created); err != nil {
			failed(c, err)
			return
		}
	}
	c.JSON(http.StatusCreated, gin.H{"order": key, "created_at": created.UTC().Format(time.RFC3339Nano)})
}
