"""The table of project components, from which the analysis and the plan are made.

To add a component, add a row with the words that indicate it, its weight, its dependencies and its
tasks.
"""

from msgspec import Struct

__all__ = ["ALWAYS", "COMPONENTS", "PHASES", "Component"]

# The phases in order, each with its purpose.
PHASES = {
    "Foundation": "the basis of everything else: code base, data, identity",
    "Core features": "the features that users want",
    "Integrations": "connections to payments, mail and other systems",
    "Hardening": "tests, security and load",
    "Launch": "the release, and the first days after it",
}

# The tasks of every project, by phase: (task, working days).
ALWAYS = {
    "Foundation": (
        ("Set up repository, build, and tests on every change", 1),
        ("Deploy an empty project", 1),
    ),
    "Hardening": (
        ("Test the most frequent user journeys end to end", 3),
        ("Review security and fix the findings", 2),
    ),
    "Launch": (
        ("Monitor errors, load and cost", 1),
        ("Release to a few users, then to all", 2),
        ("Hand over and document the operation", 1),
    ),
}


class Component(Struct, frozen=True):
    """A component of a project.

    words: indicate the component in a text; a `*` matches any ending.
    weight: in points of complexity.
    tasks: (task, working days of one person).
    implies: further components that it requires.
    needs: components whose tasks must be done before.
    """

    name: str
    phase: str
    weight: int
    words: tuple[str, ...]
    tasks: tuple[tuple[str, int], ...]
    challenge: str
    risk: str
    advice: str
    implies: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


COMPONENTS: dict[str, Component] = {
    component.name: component
    for component in (
        Component(
            "Data storage",
            "Foundation",
            6,
            (
                "database*",
                "postgres*",
                "mysql",
                "sqlite",
                "store*",
                "data model*",
                "crud",
                "records",
                "inventory",
            ),
            (
                ("Model the data and write the first migration", 2),
                ("Set up backups and test a restore", 1),
            ),
            "A data model that still fits after two years of new features",
            "A migration loses or locks live data",
            "Write every schema change as a migration from the first day",
        ),
        Component(
            "Web interface",
            "Core features",
            6,
            (
                "application*",
                "web app*",
                "website*",
                "web",
                "ui",
                "frontend",
                "front-end",
                "dashboard*",
                "page*",
                "responsive",
                "browser*",
            ),
            (
                ("Sketch the main screens and the navigation between them", 2),
                ("Build the screens", 5),
            ),
            "States that designs leave out: empty, loading, failed, forbidden",
            "Screens are built before users have tried them, and must be rebuilt",
            "Test a clickable sketch with three users before building the first screen",
        ),
        Component(
            "API",
            "Core features",
            5,
            (
                "api*",
                "rest",
                "graphql",
                "endpoint*",
                "backend",
                "back-end",
                "webhook*",
                "microservice*",
            ),
            (("Write the contract of the API", 1), ("Implement the endpoints", 4)),
            "A contract that can grow without breaking its callers",
            "Clients rely on behaviour that was never promised",
            "Write the contract first, and test the implementation against it",
            needs=("Data storage",),
        ),
        Component(
            "Authentication",
            "Foundation",
            8,
            (
                "auth",
                "authenticat*",
                "login*",
                "log in",
                "sign in",
                "sign-in",
                "sign up",
                "sign-up",
                "user account*",
                "sso",
                "oauth*",
            ),
            (
                ("Sign up, sign in, sign out", 3),
                ("Reset passwords and end sessions", 2),
            ),
            "Account recovery that is both safe and usable",
            "A custom login repeats known security mistakes",
            "Use a maintained identity service or library; keep passwords out of your own code",
            implies=("Data storage",),
            needs=("Data storage",),
        ),
        Component(
            "Roles and permissions",
            "Foundation",
            7,
            ("role*", "permission*", "rbac", "access control", "admin*", "moderator*", "approv*"),
            (
                ("Name roles, resources and actions in one table", 1),
                ("Enforce them in one place, and test each cell", 3),
            ),
            "Enforcing rules in one place, not in every handler",
            "A single missing check exposes another user's data",
            "Deny by default, and test that forbidden actions fail",
            implies=("Authentication",),
            needs=("Authentication",),
        ),
        Component(
            "Tenancy",
            "Foundation",
            8,
            (
                "saas",
                "multi-tenan*",
                "multitenan*",
                "tenant*",
                "workspace*",
                "organization*",
                "organisation*",
                "teams",
            ),
            (
                ("Add a tenant to every record and a filter to every query", 3),
                ("Invite members, leave, transfer ownership", 2),
            ),
            "Keeping customers separate even if a filter is forgotten",
            "A query without its tenant leaks data between customers",
            "Enforce the tenant in the database (row-level security), not in each query",
            implies=("Authentication", "Data storage"),
            needs=("Authentication",),
        ),
        Component(
            "Billing",
            "Integrations",
            9,
            (
                "billing",
                "payment*",
                "subscription*",
                "invoice*",
                "checkout",
                "stripe",
                "pricing",
                "pay",
                "e-commerce",
                "shop",
            ),
            (
                ("Plans, checkout, and the customer's portal", 3),
                ("Webhooks of the payment provider, each handled once", 3),
                ("Failed payments, refunds, taxes", 2),
            ),
            "Provider and database must agree, even if events arrive out of order",
            "An event handled twice, or never, costs money and trust",
            "Let the provider keep card data; make every webhook idempotent, and reconcile daily",
            implies=("Authentication",),
            needs=("Authentication", "Data storage"),
        ),
        Component(
            "Real-time updates",
            "Core features",
            9,
            (
                "real-time",
                "realtime",
                "real time",
                "live",
                "chat*",
                "websocket*",
                "collaborat*",
                "presence",
                "streaming",
            ),
            (
                ("Choose a transport and a way to reconnect", 2),
                ("Publish, subscribe, catch up after a gap", 4),
            ),
            "Order, duplicates and gaps when connections come and go",
            "It works with ten users and fails with a thousand",
            "Number all updates, so that a client can request those that it missed",
            implies=("API",),
            needs=("API",),
        ),
        Component(
            "Notifications",
            "Integrations",
            4,
            ("notif*", "email*", "e-mail*", "mail*", "sms", "push", "reminder*", "alert*"),
            (
                ("Templates, and a queue that retries", 2),
                ("Preferences, unsubscribing, bounces", 1),
            ),
            "Retrying a delivery without sending a message twice",
            "Mail lands in the spam folder, or arrives twice",
            "Use a delivery service, and keep a log of what was sent to whom",
            needs=("Data storage",),
        ),
        Component(
            "Search",
            "Core features",
            6,
            ("search*", "full-text", "filter*", "autocomplete", "faceted"),
            (
                ("Build the index and keep it up to date", 3),
                ("Rank results and evaluate them with real queries", 2),
            ),
            "Ranking that users understand",
            "The index and the data drift apart",
            "Start with the database's own search; measure before adding an engine",
            implies=("Data storage",),
            needs=("Data storage",),
        ),
        Component(
            "File uploads",
            "Core features",
            5,
            ("upload*", "file*", "image*", "photo*", "video*", "document*", "attachment*", "media"),
            (
                ("Upload in parts, with limits on size and type", 2),
                ("Store, serve, delete, scan", 2),
            ),
            "Large files over bad connections",
            "An uploaded file contains code or personal data",
            "Upload to object storage by signed URLs; never serve files from the "
            "application's own origin",
            needs=("Data storage",),
        ),
        Component(
            "Analytics and reports",
            "Core features",
            6,
            ("analytic*", "report*", "chart*", "metric*", "statistic*", "kpi*", "export*"),
            (
                ("Define the figures with the people who will use them", 1),
                ("Compute them from a copy of the data, and display them", 4),
            ),
            "Figures that agree with each other",
            "Heavy queries slow the product down",
            "Compute reports from a copy, and write down what each figure means",
            implies=("Data storage",),
            needs=("Data storage",),
        ),
        Component(
            "Machine learning",
            "Core features",
            10,
            (
                "ai",
                "ml",
                "machine learning",
                "llm*",
                "gpt*",
                "recommendation*",
                "predict*",
                "classif*",
                "embedding*",
                "chatbot*",
            ),
            (
                ("Collect examples and define the required quality", 3),
                ("Build the simplest model that reaches it", 5),
                ("Monitor quality and cost in production", 2),
            ),
            "Quality that can be measured before and after each change",
            "Cost and quality are known only after launch",
            "Write the evaluation first; begin with a hosted model behind an interface of your own",
            implies=("Data storage",),
            needs=("Data storage",),
        ),
        Component(
            "Mobile app",
            "Core features",
            9,
            ("mobile", "ios", "android", "react native", "flutter", "phone*", "tablet*"),
            (
                ("Get one screen on a real device through the stores' review", 3),
                ("Build the app", 8),
                ("Work offline, and synchronize afterwards", 3),
            ),
            "Old versions stay in use for years",
            "The review of a store delays the launch",
            "Version the API from the start, and publish an early build to a closed group",
            implies=("API",),
            needs=("API",),
        ),
        Component(
            "Integrations",
            "Integrations",
            6,
            (
                "integrat*",
                "third-party",
                "third party",
                "crm",
                "slack",
                "salesforce",
                "import*",
                "sync*",
                "calendar*",
                "erp",
            ),
            (
                ("Try each external API with a prototype", 2),
                ("Import, export, retry, and report failures", 4),
            ),
            "External systems that are slow, limited, or change without notice",
            "An outage of an external system becomes one of yours",
            "Put a queue and a timeout between you and every external system",
            needs=("API", "Data storage"),
        ),
        Component(
            "Localization",
            "Core features",
            4,
            (
                "multilingual",
                "multi-language",
                "locali*",
                "translat*",
                "i18n",
                "internationali*",
                "languages",
                "currencies",
            ),
            (
                ("Move all texts out of the code", 2),
                ("Support dates, numbers, plurals and right-to-left text", 2),
            ),
            "Translations that are too long, and plural rules unlike those of English",
            "If added late, it changes every screen",
            "Keep texts out of the code from the first screen on",
            needs=("Web interface",),
        ),
        Component(
            "Background jobs",
            "Core features",
            5,
            (
                "background",
                "queue*",
                "cron",
                "schedul*",
                "batch",
                "workflow*",
                "automation*",
                "booking*",
                "appointment*",
            ),
            (
                ("Set up a queue with retries and a list of failed jobs", 2),
                ("Make jobs safe to run twice", 2),
            ),
            "Jobs that fail halfway",
            "Nobody notices that a job has not run for weeks",
            "Make jobs idempotent, and raise an alarm when one has not run",
            needs=("Data storage",),
        ),
        Component(
            "Compliance",
            "Hardening",
            9,
            (
                "gdpr",
                "hipaa",
                "soc 2",
                "soc2",
                "pci*",
                "complian*",
                "audit*",
                "privacy",
                "medical",
                "health*",
                "bank*",
                "regulat*",
            ),
            (
                ("List personal data: where, why, how long", 2),
                ("Export, erase, and prove it by an audit log", 3),
            ),
            "Proof, not intention: who saw what, and when",
            "An audit finds in a week what takes months to change",
            "Ask whoever will audit it before the data model is final",
            implies=("Data storage",),
            needs=("Data storage",),
        ),
        Component(
            "Scale and availability",
            "Hardening",
            8,
            (
                "million*",
                "scal*",
                "high availability",
                "high traffic",
                "99.9*",
                "performance",
                "low latency",
                "thousands",
                "concurrent",
            ),
            (
                ("Write down the load that is expected, and test with it", 2),
                ("Remove what the test shows to be slow", 3),
            ),
            "The first bottleneck is rarely where it is expected",
            "Scaling for a load that never comes delays what users need",
            "Measure with the expected load times three, and stop there",
        ),
    )
}
