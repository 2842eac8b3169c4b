package kv

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"samovar/internal/fault"
)

// Limits of one call, below those of etcd (128 operations, 1.5 MiB), so that every implementation refuses alike.
const (
	MaxKeyBytes   = 512
	MaxWriteBytes = 1 << 20 // keys and values of one write together
	MaxOperations = 100     // conditions, and changes, of one transaction
)

// Condition holds when the key's ModRevision is the given one; 0 means that the key does not exist.
type Condition struct {
	Key         string
	ModRevision int64
}

// Change is one effect of a transaction: a record written, or removed when Remove is set.
type Change struct {
	Key    string
	Value  []byte
	Lease  LeaseID
	Remove bool
}

// CheckKey tells whether key is a fit name of a record.
func CheckKey(op, key string) error {
	switch {
	case key == "":
		return fault.New(fault.Invalid, op, "the key is empty")
	case len(key) > MaxKeyBytes:
		return fault.New(fault.Invalid, op, fmt.Sprintf("the key is longer than %d bytes", MaxKeyBytes))
	}
	return CheckPrefix(op, key)
}

// CheckPrefix tells whether prefix can be the beginning of a key; the empty one can.
func CheckPrefix(op, prefix string) error {
	switch {
	case strings.HasPrefix(prefix, "/"):
		return fault.New(fault.Invalid, op, "keys are relative: the first character must not be /")
	case !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fault.New(fault.Invalid, op, "keys are UTF-8 without control characters")
	}
	return nil
}

// CheckTxn tells whether a transaction is well formed.
func CheckTxn(op string, conditions []Condition, changes []Change) error {
	if len(conditions) > MaxOperations || len(changes) > MaxOperations {
		return fault.New(fault.Invalid, op, fmt.Sprintf("more than %d conditions or changes", MaxOperations))
	}
	if len(conditions)+len(changes) == 0 {
		return fault.New(fault.Invalid, op, "an empty transaction")
	}
	sizeBytes := 0
	conditioned := map[string]bool{}
	for _, c := range conditions {
		if err := CheckKey(op, c.Key); err != nil {
			return err
		}
		if c.ModRevision < 0 || conditioned[c.Key] {
			return fault.New(fault.Invalid, op, "a condition on "+c.Key+" is negative or stands there twice")
		}
		conditioned[c.Key] = true
		sizeBytes += len(c.Key)
	}
	changed := map[string]bool{}
	for _, c := range changes {
		if err := CheckKey(op, c.Key); err != nil {
			return err
		}
		if changed[c.Key] {
			return fault.New(fault.Invalid, op, c.Key+" is changed twice in one transaction")
		}
		changed[c.Key] = true
		sizeBytes += len(c.Key) + len(c.Value)
	}
	if sizeBytes > MaxWriteBytes {
		return fault.New(fault.Invalid, op, fmt.Sprintf("%d bytes in one write; at most %d", sizeBytes, MaxWriteBytes))
	}
	return nil
}
