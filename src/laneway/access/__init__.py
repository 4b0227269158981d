"""Authentication and permission, once, for all front ends. Imports nothing of Laneway but its errors."""

from laneway.access.access import Access, DocumentStore
from laneway.access.accounts import (
    ADMIN,
    GUEST,
    MONITOR,
    OPERATOR,
    ROLES,
    USER,
    AccessLimits,
    Account,
    KeyInfo,
    KeyKind,
    Login,
    LoginKind,
    Need,
    Permission,
    TopicPermission,
    VhostPermission,
)
from laneway.access.failures import Origin
from laneway.access.peers import Network, Peer, TrustedProxies, is_loopback

__all__ = [
    "ADMIN",
    "GUEST",
    "MONITOR",
    "OPERATOR",
    "ROLES",
    "USER",
    "Access",
    "AccessLimits",
    "Account",
    "DocumentStore",
    "KeyInfo",
    "KeyKind",
    "Login",
    "LoginKind",
    "Need",
    "Network",
    "Origin",
    "Peer",
    "Permission",
    "TopicPermission",
    "TrustedProxies",
    "VhostPermission",
    "is_loopback",
]
