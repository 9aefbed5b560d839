package lockpool

// This file checks and escapes names.

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

// checkName is called before anything is sent.
func (p *Pool) checkName(name string) error {
	if err := p.connector.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

// Escape returns any text s as one part of a lock's name:
//
//	pool.Lock(ctx, "pages/"+lockpool.Escape("https://example.com/a?b=c"))
//
// Different texts yield different parts, and [Unescape] returns the text. Bytes impossible
// in a name are percent-encoded, as in a URL, and turn one byte into three; a name has at
// most 512 bytes.
func Escape(s string) string {
	if s == "" {
		return escapedEmpty
	}
	reserved := slices.Contains(reservedParts, s)
	number := len(strings.TrimRight(s, "0123456789")) // where a number at the end begins
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case i == 0 && (reserved || c == '_' || c == '.'),
			c == '_' && s[i-1] == '_',                       // nodes' names end in __READ__0000000042,
			c == '-' && i == number-1 && len(s)-number >= 9, // or in lock-0000000042
			c != '_' && !strings.Contains(plainBytes, s[i:i+1]):
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

const (
	escapedEmpty = "~"
	plainBytes   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:=@,+"
)

// reservedParts are the parts not allowed everywhere in a name, beside those with a dot
// before them.
var reservedParts = []string{"zookeeper", driver.Guards, driver.Leases, driver.Limit}

// Unescape returns the text that [Escape] turned into part.
func Unescape(part string) (string, error) {
	if part == escapedEmpty {
		return "", nil
	}
	s, err := url.PathUnescape(part)
	if err != nil {
		return "", fmt.Errorf("lockpool: unescape %q: %w", part, err)
	}
	return s, nil
}
