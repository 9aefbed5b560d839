package zktest

// This file has access control lists and identities.

import (
	"crypto/sha1"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"
)

// Permissions of an ACL entry.
const (
	permRead   = 1
	permWrite  = 2
	permCreate = 4
	permDelete = 8
	permAdmin  = 16
	permAll    = 31
)

// identity is an identity of a connection, or the identity named by an ACL entry.
type identity struct{ scheme, id string }

var (
	worldAnyone = identity{"world", "anyone"}
	superUser   = identity{"super", ""} // has all permissions
)

// digest returns the identity of "user:password".
func digest(credentials string) identity {
	sum := sha1.Sum([]byte(credentials))
	user, _, _ := strings.Cut(credentials, ":")
	return identity{"digest", user + ":" + base64.StdEncoding.EncodeToString(sum[:])}
}

// acl is one entry of a node's access control list.
type acl struct {
	identity
	perms int32
	null  bool // the id is null, as only the scheme "auth" permits
}

// allowed reports whether one of the identities has one of the permissions.
func allowed(list []acl, perms int32, identities []identity) bool {
	return len(list) == 0 || slices.Contains(identities, superUser) || slices.ContainsFunc(list, func(a acl) bool {
		return a.perms&perms != 0 && (a.identity == worldAnyone || slices.ContainsFunc(identities, a.matches))
	})
}

// matches reports whether the entry applies to the identity.
func (a acl) matches(id identity) bool {
	if a.scheme != id.scheme {
		return false
	}
	if a.scheme != "ip" {
		return a.id == id.id
	}
	addr, err := netip.ParseAddr(id.id)
	prefix, ok := ipPrefix(a.id)
	return err == nil && ok && prefix.Contains(addr.Unmap())
}

func ipPrefix(id string) (netip.Prefix, bool) {
	if !strings.Contains(id, "/") {
		id += "/32"
	}
	p, err := netip.ParsePrefix(id)
	return p, err == nil && p.Addr().Is4()
}

// fixupACL returns the list as a node stores it, like ZooKeeper's fixupACL:
// without duplicates, and with the scheme "auth" replaced by the identities of
// the connection. An invalid list is an error.
func fixupACL(list []acl, identities []identity) ([]acl, Code) {
	var fixed []acl
	for i, a := range list {
		if slices.Contains(list[:i], a) {
			continue
		}
		if a.null && (a.scheme == "world" || a.scheme == "digest" || a.scheme == "ip") {
			return nil, ErrMarshalling // the real server fails here
		}
		entries := a.resolve(identities)
		if len(entries) == 0 {
			return nil, ErrInvalidACL
		}
		fixed = append(fixed, entries...)
	}
	if len(fixed) == 0 {
		return nil, ErrInvalidACL
	}
	return fixed, OK
}

// resolve returns the entry or, for the scheme "auth", the entries for the digest
// identities. It returns nil for an invalid entry.
func (a acl) resolve(identities []identity) (entries []acl) {
	valid := false
	switch a.scheme {
	case "auth":
		for _, id := range identities {
			if id.scheme == "digest" {
				entries = append(entries, acl{identity: id, perms: a.perms})
			}
		}
		return entries
	case "world":
		valid = a.id == "anyone"
	case "digest":
		// Java's split does not count empty parts at the end.
		valid = strings.Count(strings.TrimRight(a.id, ":"), ":") == 1
	case "ip":
		_, valid = ipPrefix(a.id)
	}
	if !valid {
		return nil
	}
	return []acl{a}
}

// maskDigests hides the password digests from connections without ADMIN.
func maskDigests(list []acl) []acl {
	list = slices.Clone(list)
	for i, a := range list {
		if user, _, ok := strings.Cut(a.id, ":"); ok && a.scheme == "digest" {
			list[i].id = user + ":x"
		}
	}
	return list
}
