// Package joingorm shows users of GORM how to write in the joined transaction. [Payments.tx] is
// all that a service copies.
package joingorm

import (
	"context"

	"gorm.io/gorm"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Payment is a row of the table payments.
type Payment struct {
	ID     string `gorm:"primaryKey"`
	Payer  string
	Amount int64
}

// Payments writes payments. It is safe for concurrent use.
type Payments struct{ db *gorm.DB }

// New returns Payments over the handle that the service has made at its start, over the pool of
// its joined store.
func New(db *gorm.DB) *Payments { return &Payments{db} }

// tx returns GORM's handle on the transaction of the running handler. Its error is that of
// [sqlstore.Tx]. Its Transaction method makes a savepoint, as in any transaction of GORM. Do not
// call its Commit or Rollback.
func (p *Payments) tx(ctx context.Context) (*gorm.DB, error) {
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return nil, err
	}
	db := p.db.Session(&gorm.Session{Context: ctx, NewDB: true})
	db.Statement.ConnPool = tx
	return db, nil
}

// Pay writes a payment and returns what its payer has paid in all.
func (p *Payments) Pay(ctx context.Context, payment Payment) (sum int64, err error) {
	tx, err := p.tx(ctx)
	if err != nil {
		return 0, err
	}
	if err := tx.Create(&payment).Error; err != nil {
		return 0, err
	}
	err = tx.Model(&Payment{}).Where("payer = ?", payment.Payer).Select("sum(amount)").Scan(&sum).Error
	return sum, err
}
