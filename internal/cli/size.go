package cli

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// size is a number of bytes as a flag.
type size uint64

func (s *size) String() string {
	if s == nil || *s == 0 {
		return ""
	}
	return formatSize(uint64(*s))
}

func (s *size) Set(text string) error {
	n, err := parseSize(text)
	*s = size(n)
	return err
}

func (s *size) Type() string { return "size" }

// parseSize reads 10GiB, 10Gi, 10G (all binary, as lvm and qemu have it), 10GB (decimal), 1.5TiB, or bytes.
func parseSize(text string) (uint64, error) {
	bad := fmt.Errorf("want a size like 512MiB, 10GiB (10G for short), 1.5TiB, or bytes")
	trimmed := strings.TrimSpace(text)
	end := strings.IndexFunc(trimmed, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(trimmed)
	}
	number, unit := trimmed[:end], strings.ToLower(strings.TrimSpace(trimmed[end:]))
	if number == "" || len(number) > 30 || strings.HasPrefix(number, ".") || strings.HasSuffix(number, ".") {
		return 0, bad
	}
	factor := big.NewInt(1)
	if unit != "" && unit != "b" {
		power := int64(strings.IndexByte("kmgtp", unit[0]) + 1)
		switch unit[1:] {
		case "", "i", "ib":
			factor.Exp(big.NewInt(1024), big.NewInt(power), nil)
		case "b":
			factor.Exp(big.NewInt(1000), big.NewInt(power), nil)
		default:
			return 0, bad
		}
		if power == 0 {
			return 0, bad
		}
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, bad
	}
	value.Mul(value, new(big.Rat).SetInt(factor))
	switch {
	case !value.IsInt():
		return 0, fmt.Errorf("no whole number of bytes")
	case !value.Num().IsUint64():
		return 0, fmt.Errorf("too large")
	}
	return value.Num().Uint64(), nil
}

// formatSize prints bytes for people: exact ones as they would be typed, others with one decimal.
func formatSize(n uint64) string {
	if n < 1024 {
		if n == 0 {
			return "0"
		}
		return strconv.FormatUint(n, 10) + "B"
	}
	unit, i := uint64(1024), 0
	for n/unit >= 1024 && i < 5 {
		unit, i = unit*1024, i+1
	}
	name := "KMGTPE"[i:i+1] + "iB"
	if n%unit == 0 {
		return strconv.FormatUint(n/unit, 10) + name
	}
	text := strconv.FormatFloat(float64(n)/float64(unit), 'f', 1, 64)
	if text == "1024.0" && i < 5 {
		return "1" + "KMGTPE"[i+1:i+2] + "iB"
	}
	return strings.TrimSuffix(text, ".0") + name
}
