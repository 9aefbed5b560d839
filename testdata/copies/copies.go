// Package copies copies what must not be copied. TestVetReportsCopies runs go vet
// on it.
package copies

import "github.com/lockpool/lockpool"

func lock(l *lockpool.Lock) { c := *l; _ = &c }

func pointer(l *lockpool.Lock) { c := l; _ = c }
